package main

import (
	"context"

	"github.com/twmb/franz-go/pkg/kadm"
)

// What kadm asks of a cluster, once each.
func admin(ctx context.Context, address, name string) {
	client := open(address)
	defer client.Close()
	admin := kadm.NewClient(client)
	topics(ctx, admin, name)
	produce(ctx, client, name, 0, 60)
	offsets(ctx, admin, name)
	cluster(ctx, admin, name)
	rights(ctx, admin, name)
	deleted, err := admin.DeleteTopics(ctx, name)
	check(err, "deleting a topic")
	check(deleted.Error(), "deleting the topic")
}

func topics(ctx context.Context, admin *kadm.Client, name string) {
	_, err := admin.CreateTopic(ctx, 2, 1, map[string]*string{"retention.ms": kadm.StringPtr("86400000")}, name)
	check(err, "creating a topic")
	added, err := admin.CreatePartitions(ctx, 1, name)
	check(err, "adding partitions")
	check(added.Error(), "adding a partition")
	set := []kadm.AlterConfig{
		{Op: kadm.SetConfig, Name: "cleanup.policy", Value: kadm.StringPtr("compact,delete")},
		{Op: kadm.DeleteConfig, Name: "retention.ms"},
	}
	altered, err := admin.AlterTopicConfigs(ctx, set, name)
	check(err, "altering settings")
	check(altered[0].Err, "altering a setting")
	described, err := admin.DescribeTopicConfigs(ctx, name)
	check(err, "describing settings")
	found := map[string]string{}
	for _, config := range described[0].Configs {
		found[config.Key] = config.MaybeValue()
	}
	expect(found["cleanup.policy"], "compact,delete", "cleanup.policy")
	expect(found["retention.ms"], "604800000", "retention.ms")
	listed, err := admin.ListTopics(ctx, name)
	check(err, "listing topics")
	expect(len(listed[name].Partitions), 3, "partitions")
}

func offsets(ctx context.Context, admin *kadm.Client, name string) {
	ends, err := admin.ListEndOffsets(ctx, name)
	check(err, "listing ends")
	total := int64(0)
	wanted := kadm.Offsets{}
	ends.Each(func(offset kadm.ListedOffset) {
		total += offset.Offset
		wanted.AddOffset(name, offset.Partition, offset.Offset, -1)
	})
	expect(total, 60, "ends")
	early, err := admin.ListOffsetsAfterMilli(ctx, 0, name)
	check(err, "listing by time")
	early.Each(func(offset kadm.ListedOffset) { expect(offset.Offset, 0, "offset after the epoch") })
	committed, err := admin.CommitOffsets(ctx, name, wanted)
	check(err, "committing")
	check(committed.Error(), "committing an offset")
	groups, err := admin.ListGroups(ctx)
	check(err, "listing groups")
	expect(groups[name].State, "Empty", "state of the group")
	deletedGroups, err := admin.DeleteGroups(ctx, name)
	check(err, "deleting groups")
	check(deletedGroups.Error(), "deleting a group")
	deleted, err := admin.DeleteRecords(ctx, wanted)
	check(err, "deleting records")
	check(deleted.Error(), "deleting the records")
	starts, err := admin.ListStartOffsets(ctx, name)
	check(err, "listing starts")
	total = 0
	starts.Each(func(offset kadm.ListedOffset) { total += offset.Offset })
	expect(total, 60, "starts")
}

func cluster(ctx context.Context, admin *kadm.Client, name string) {
	brokers, err := admin.BrokerMetadata(ctx)
	check(err, "asking for brokers")
	expect(len(brokers.Brokers), 1, "brokers")
	versions, err := admin.ApiVersions(ctx)
	check(err, "asking for versions")
	expect(len(versions), 1, "answers about versions")
	directories, err := admin.DescribeAllLogDirs(ctx, nil)
	check(err, "describing directories")
	expect(len(directories), 1, "brokers with directories")
	producers, err := admin.DescribeProducers(ctx, kadm.TopicsSet{name: {0: {}}})
	check(err, "describing producers")
	expect(len(producers), 1, "topics with producers")
	_, err = admin.ListTransactions(ctx, nil, nil)
	check(err, "listing transactions")
}

func rights(ctx context.Context, admin *kadm.Client, name string) {
	right := kadm.NewACLs().Topics(name).Allow("User:"+name).AllowHosts("*").
		Operations(kadm.OpRead, kadm.OpDescribe).ResourcePatternType(kadm.ACLPatternLiteral)
	_, err := admin.CreateACLs(ctx, right)
	check(err, "adding rights")
	found, err := admin.DescribeACLs(ctx, right)
	check(err, "describing rights")
	count := 0
	for _, one := range found {
		check(one.Err, "describing a right")
		count += len(one.Described)
	}
	expect(count, 2, "rights")
	_, err = admin.DeleteACLs(ctx, right)
	check(err, "removing rights")
	user := kadm.UpsertSCRAM{User: name, Mechanism: kadm.ScramSha256, Iterations: 4096, Password: "secret"}
	_, err = admin.AlterUserSCRAMs(ctx, nil, []kadm.UpsertSCRAM{user})
	check(err, "adding a user")
	users, err := admin.DescribeUserSCRAMs(ctx, name)
	check(err, "describing users")
	expect(len(users[name].CredInfos), 1, "credentials")
}
