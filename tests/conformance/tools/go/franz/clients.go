package main

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func create(ctx context.Context, address, topic string, partitions int32) {
	client := open(address)
	defer client.Close()
	_, err := kadm.NewClient(client).CreateTopic(ctx, partitions, 1, nil, topic)
	check(err, "creating "+topic)
}

// Every codec, idempotent and not, read back whole.
func codecs(ctx context.Context, address, name string) {
	create(ctx, address, name, 2)
	all := []kgo.CompressionCodec{
		kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression(),
	}
	count := 0
	for _, codec := range all {
		for _, options := range [][]kgo.Opt{nil, {kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.LeaderAck())}} {
			client := open(address, append(options, kgo.ProducerBatchCompression(codec))...)
			produce(ctx, client, name, count, count+200)
			client.Close()
			count += 200
		}
	}
	reader := open(address, kgo.ConsumeTopics(name), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer reader.Close()
	expectNumbers(readAll(ctx, count, reader), 0, count)
}

// Two members share a topic, one leaves, the other goes on with all of it.
func group(ctx context.Context, address, name string, options ...kgo.Opt) {
	create(ctx, address, name, 4)
	member := func(id string) *kgo.Client {
		return open(address, append([]kgo.Opt{
			kgo.ClientID(id),
			kgo.ConsumerGroup(name),
			kgo.ConsumeTopics(name),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
			kgo.HeartbeatInterval(200 * time.Millisecond),
			kgo.DisableAutoCommit(),
		}, options...)...)
	}
	writer := open(address)
	defer writer.Close()
	produce(ctx, writer, name, 0, 100)
	one := member("one")
	expectNumbers(readAll(ctx, 100, one), 0, 100)
	check(one.CommitUncommittedOffsets(ctx), "committing")

	two := member("two")
	waitForMembers(ctx, address, name, len(options) > 0, one, two)
	produce(ctx, writer, name, 100, 200)
	expectNumbers(readAll(ctx, 100, one, two), 100, 200)
	check(one.CommitUncommittedOffsets(ctx), "committing of one")
	check(two.CommitUncommittedOffsets(ctx), "committing of two")
	two.LeaveGroup()
	two.Close()

	produce(ctx, writer, name, 200, 300)
	expectNumbers(readAll(ctx, 100, one), 200, 300)
	check(one.CommitUncommittedOffsets(ctx), "committing the rest")
	one.LeaveGroup()
	one.Close()

	committed, err := kadm.NewClient(writer).FetchOffsets(ctx, name)
	check(err, "reading what was committed")
	total := int64(0)
	committed.Each(func(offset kadm.OffsetResponse) { total += offset.At })
	expect(total, 300, "committed offsets")
}

// waitForMembers polls both until each of them has two partitions.
func waitForMembers(ctx context.Context, address, name string, server bool, members ...*kgo.Client) {
	client := open(address)
	defer client.Close()
	for ctx.Err() == nil {
		for _, member := range members {
			short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			if member.PollFetches(short).NumRecords() > 0 {
				fail("a member read again what was committed")
			}
			cancel()
		}
		if areShared(ctx, kadm.NewClient(client), name, server) {
			return
		}
	}
	fail("two members do not share four partitions in time")
}

func areShared(ctx context.Context, admin *kadm.Client, name string, server bool) bool {
	var shares []int
	if server {
		described, err := admin.DescribeConsumerGroups(ctx, name)
		check(err, "describing a consumer group")
		for _, member := range described[name].Members {
			count := 0
			for _, partitions := range member.Assignment {
				count += len(partitions)
			}
			shares = append(shares, count)
		}
	} else {
		described, err := admin.DescribeGroups(ctx, name)
		check(err, "describing a group")
		for _, member := range described[name].Members {
			if assigned, known := member.Assigned.AsConsumer(); known {
				for _, topic := range assigned.Topics {
					shares = append(shares, len(topic.Partitions))
				}
			}
		}
	}
	return len(shares) == 2 && shares[0] == 2 && shares[1] == 2
}

// Records go from one topic to another exactly once; what is aborted is not seen.
func transactions(ctx context.Context, address, name string) {
	output := name + "-copy"
	create(ctx, address, name, 2)
	create(ctx, address, output, 2)
	writer := open(address)
	defer writer.Close()
	produce(ctx, writer, name, 0, 100)
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(address),
		kgo.TransactionalID(name),
		kgo.ConsumerGroup(name),
		kgo.ConsumeTopics(name),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
	)
	check(err, "opening a session")
	defer session.Close()
	isFirst := true
	for copied := 0; copied < 100; {
		fetches := session.PollRecords(ctx, 30)
		check(fetches.Err(), "polling")
		check(session.Begin(), "beginning")
		fetches.EachRecord(func(record *kgo.Record) {
			copy := &kgo.Record{Topic: output, Key: record.Key, Value: record.Value, Headers: record.Headers}
			session.Produce(ctx, copy, func(_ *kgo.Record, err error) { check(err, "producing a copy") })
		})
		check(session.Client().Flush(ctx), "flushing")
		committed, err := session.End(ctx, kgo.TransactionEndTry(!isFirst))
		check(err, "ending")
		if isFirst {
			expect(committed, false, "aborted on purpose")
		} else if committed {
			copied += fetches.NumRecords()
		}
		isFirst = false
	}
	reader := open(address, kgo.ConsumeTopics(output), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	defer reader.Close()
	expectNumbers(readAll(ctx, 100, reader), 0, 100)
	lags, err := kadm.NewClient(writer).Lag(ctx, name)
	check(err, "asking for the lag")
	expect(lags[name].Lag.Total(), 0, "lag")
}

// A second producer of one transactional id shuts the first one out.
func fencing(ctx context.Context, address, name string) {
	create(ctx, address, name, 1)
	begin := func() *kgo.Client {
		client := open(address, kgo.TransactionalID(name))
		check(client.BeginTransaction(), "beginning")
		return client
	}
	first := begin()
	produce(ctx, first, name, 0, 10)
	second := begin()
	produce(ctx, second, name, 10, 20)
	err := first.EndTransaction(ctx, kgo.TryCommit)
	if !errors.Is(err, kerr.ProducerFenced) && !errors.Is(err, kerr.InvalidProducerEpoch) {
		fail("the first producer was not fenced: %v", err)
	}
	check(second.EndTransaction(ctx, kgo.TryCommit), "committing")
	reader := open(address, kgo.ConsumeTopics(name), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	expectNumbers(readAll(ctx, 10, reader), 10, 20)
	reader.Close()
	first.Close()
	second.Close()
}
