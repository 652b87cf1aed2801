// Franz-go at a cluster: franz SERVERS NAME. Ends with "done" if all is as it must be.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

var servers []string

func must(err error) {
	if err != nil {
		log.Fatalf("%+v", err)
	}
}

func check(holds bool, format string, more ...any) {
	if !holds {
		log.Fatalf(format, more...)
	}
}

func client(options ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(servers...)}, options...)...)
	must(err)
	return made
}

func produce(ctx context.Context, topic string, count int, options ...kgo.Opt) {
	producer := client(append(options, kgo.DefaultProduceTopic(topic))...)
	defer producer.Close()
	for i := 0; i < count; i++ {
		must(producer.ProduceSync(ctx, kgo.KeyStringRecord(fmt.Sprintf("k%d", i), fmt.Sprintf("v%d", i))).FirstErr())
	}
}

func read(ctx context.Context, reader *kgo.Client, count int) []string {
	var found []string
	limited, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for len(found) < count {
		fetches := reader.PollFetches(limited)
		must(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) { found = append(found, string(record.Value)) })
	}
	return found
}

func groups(ctx context.Context, admin *kadm.Client, name string) {
	for _, protocol := range []string{"classic", "consumer"} {
		topic, group := name+"-none", name+"-"+protocol
		options := []kgo.Opt{kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())}
		if protocol == "consumer" {
			options = append(options, kgo.ServerSideBalancer())
		}
		member := client(options...)
		check(len(read(ctx, member, 20)) == 20, "records of the group")
		must(member.CommitUncommittedOffsets(ctx))
		described, err := admin.DescribeGroups(ctx, group)
		must(err)
		if protocol == "classic" {
			check(described[group].State == "Stable", "the group is %v", described[group])
		}
		member.LeaveGroup()
		member.Close()
		offsets, err := admin.FetchOffsets(ctx, group)
		must(err)
		found, _ := offsets.Lookup(topic, 0)
		check(found.At == 20, "%s: committed %v", protocol, found)
		deleted, err := admin.DeleteGroups(ctx, group)
		must(err)
		must(deleted.Error())
	}
}

func transactions(ctx context.Context, admin *kadm.Client, name string) {
	_, err := admin.CreateTopics(ctx, 1, 3, nil, name+"-in", name+"-out")
	must(err)
	produce(ctx, name+"-in", 10)
	session, err := kgo.NewGroupTransactSession(kgo.SeedBrokers(servers...), kgo.TransactionalID(name),
		kgo.ConsumerGroup(name+"-etl"), kgo.ConsumeTopics(name+"-in"), kgo.DefaultProduceTopic(name+"-out"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets())
	must(err)
	var taken []*kgo.Record
	for len(taken) < 10 {
		fetches := session.PollFetches(ctx)
		must(fetches.Err())
		taken = append(taken, fetches.Records()...)
	}
	must(session.Begin())
	for _, record := range taken {
		must(session.ProduceSync(ctx, kgo.StringRecord(string(record.Value)+"!")).FirstErr())
	}
	committed, err := session.End(ctx, kgo.TryCommit)
	must(err)
	check(committed, "the transaction is committed")
	session.Close()
	producer := client(kgo.TransactionalID(name+"-2"), kgo.DefaultProduceTopic(name+"-out"))
	for _, end := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		must(producer.BeginTransaction())
		must(producer.ProduceSync(ctx, kgo.StringRecord(fmt.Sprint(end))).FirstErr())
		must(producer.EndTransaction(ctx, end))
	}
	producer.Close()
	reader := client(kgo.ConsumeTopics(name+"-out"), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	found := read(ctx, reader, 11)
	reader.Close()
	check(found[0] == "v0!" && found[9] == "v9!" && found[10] == "true", "committed records: %v", found)
	offsets, err := admin.FetchOffsets(ctx, name+"-etl")
	must(err)
	at, _ := offsets.Lookup(name+"-in", 0)
	check(at.At == 10, "offsets of the transaction: %v", at)
}

func main() {
	servers = strings.Split(os.Args[1], ",")
	name, ctx := os.Args[2], context.Background()
	base := client()
	defer base.Close()
	admin := kadm.NewClient(base)
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	topics := []string{name + "-acks-0", name + "-acks-1"}
	for codec := range codecs {
		topics = append(topics, name+"-"+codec)
	}
	created, err := admin.CreateTopics(ctx, 1, 3, nil, topics...)
	must(err)
	must(created.Error())
	for codec, option := range codecs {
		produce(ctx, name+"-"+codec, 20, kgo.ProducerBatchCompression(option)) // idempotent, as by default
		reader := client(kgo.ConsumeTopics(name+"-"+codec), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		found := read(ctx, reader, 20)
		reader.Close()
		check(found[0] == "v0" && found[19] == "v19", "%s: %v", codec, found)
	}
	for acks, option := range map[string]kgo.Acks{"0": kgo.NoAck(), "1": kgo.LeaderAck()} {
		topic := name + "-acks-" + acks
		produce(ctx, topic, 1)
		produce(ctx, topic, 20, kgo.RequiredAcks(option), kgo.DisableIdempotentWrite())
		reader := client(kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		read(ctx, reader, 21)
		reader.Close()
	}
	groups(ctx, admin, name)
	transactions(ctx, admin, name)
	grown, err := admin.UpdatePartitions(ctx, 3, name+"-none")
	must(err)
	must(grown.Error())
	ends, err := admin.ListEndOffsets(ctx, name+"-gzip")
	must(err)
	end, _ := ends.Lookup(name+"-gzip", 0)
	check(end.Offset == 20, "end %v", end)
	_, err = admin.DescribeTopicConfigs(ctx, name+"-none")
	must(err)
	_, err = admin.DeleteRecords(ctx, kadm.Offsets{name + "-gzip": {0: {Topic: name + "-gzip", Partition: 0, At: 5}}})
	must(err)
	_, err = admin.DeleteTopics(ctx, name+"-gzip")
	must(err)
	must(errors.Join())
	fmt.Println("done")
}
