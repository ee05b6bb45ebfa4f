// franz-go's producers, consumers, transactions and admin client against one server.
//
//	franz ADDRESS SCENARIO NAME
//
// Each scenario makes topics, groups and producers of its own from the name, checks what it sees, and ends with
// status 0, or with status 1 and what was wrong.
package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const deadline = 60 * time.Second

type scenario func(ctx context.Context, address, name string)

var scenarios = map[string]scenario{
	"codecs":       codecs,
	"classic":      func(ctx context.Context, a, n string) { group(ctx, a, n) },
	"consumer":     func(ctx context.Context, a, n string) { group(ctx, a, n, kgo.ServerSideBalancer(), sticky()) },
	"transactions": transactions,
	"fencing":      fencing,
	"admin":        admin,
}

func main() {
	run, known := scenarios[os.Args[2]]
	if !known {
		fail("unknown scenario %s", os.Args[2])
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	run(ctx, os.Args[1], os.Args[3])
	fmt.Println("done")
}

func fail(message string, values ...any) {
	fmt.Fprintf(os.Stderr, message+"\n", values...)
	os.Exit(1)
}

func check(err error, what string) {
	if err != nil {
		fail("%s: %v", what, err)
	}
}

func expect[T comparable](got, wanted T, what string) {
	if got != wanted {
		fail("%s: got %v, wanted %v", what, got, wanted)
	}
}

func sticky() kgo.Opt { return kgo.Balancers(kgo.CooperativeStickyBalancer()) }

func open(address string, options ...kgo.Opt) *kgo.Client {
	all := append([]kgo.Opt{kgo.SeedBrokers(address), kgo.FetchMaxWait(200 * time.Millisecond)}, options...)
	client, err := kgo.NewClient(all...)
	check(err, "opening a client")
	return client
}

func produce(ctx context.Context, client *kgo.Client, topic string, first, end int) {
	var records []*kgo.Record
	for number := first; number < end; number++ {
		text := fmt.Sprintf("%06d", number)
		records = append(records, &kgo.Record{
			Topic:   topic,
			Key:     []byte(text),
			Value:   []byte(text),
			Headers: []kgo.RecordHeader{{Key: "number", Value: []byte(text)}},
		})
	}
	check(client.ProduceSync(ctx, records...).FirstErr(), "producing")
}

// readAll gives the values of the first count records that the clients get, sorted.
func readAll(ctx context.Context, count int, clients ...*kgo.Client) []string {
	var values []string
	for len(values) < count {
		for _, client := range clients {
			short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			fetches := client.PollFetches(short)
			cancel()
			if ctx.Err() != nil {
				fail("only %d of %d records were read in time", len(values), count)
			}
			fetches.EachError(func(topic string, partition int32, err error) {
				if err != context.DeadlineExceeded {
					fail("reading %s-%d: %v", topic, partition, err)
				}
			})
			fetches.EachRecord(func(record *kgo.Record) {
				if string(record.Headers[0].Value) != string(record.Value) {
					fail("headers of offset %d are not its own", record.Offset)
				}
				values = append(values, string(record.Value))
			})
		}
	}
	sort.Strings(values)
	return values
}

func expectNumbers(values []string, first, end int) {
	expect(len(values), end-first, "count of records")
	for index, value := range values {
		expect(value, fmt.Sprintf("%06d", first+index), "value")
	}
}
