// Sarama at a cluster: sarama SERVERS NAME. Ends with "done" if all is as it must be.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

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

func config() *sarama.Config {
	made := sarama.NewConfig()
	made.Producer.Return.Successes = true
	made.Consumer.Offsets.Initial = sarama.OffsetOldest
	return made
}

func produce(servers []string, topic string, count int, made *sarama.Config) {
	producer, err := sarama.NewSyncProducer(servers, made)
	must(err)
	defer producer.Close()
	for i := 0; i < count; i++ {
		_, offset, err := producer.SendMessage(&sarama.ProducerMessage{
			Topic: topic, Partition: 0, Key: sarama.StringEncoder(fmt.Sprintf("k%d", i)),
			Value:   sarama.StringEncoder(fmt.Sprintf("v%d", i)),
			Headers: []sarama.RecordHeader{{Key: []byte("h"), Value: []byte("1")}},
		})
		must(err)
		check(made.Producer.RequiredAcks == sarama.NoResponse || offset == int64(i), "%s: offset %d, not %d", topic, offset, i)
	}
}

func read(servers []string, topic string, count int, isolation sarama.IsolationLevel) []string {
	made := config()
	made.Consumer.IsolationLevel = isolation
	consumer, err := sarama.NewConsumer(servers, made)
	must(err)
	defer consumer.Close()
	part, err := consumer.ConsumePartition(topic, 0, sarama.OffsetOldest)
	must(err)
	defer part.Close()
	var found []string
	limit := time.After(30 * time.Second)
	for len(found) < count {
		select {
		case message := <-part.Messages():
			found = append(found, string(message.Value))
		case <-limit:
			log.Fatalf("%s: %d records of %d", topic, len(found), count)
		}
	}
	return found
}

type member struct {
	count  int
	seen   chan int
	cancel context.CancelFunc
}

func (m *member) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		session.MarkMessage(message, "")
		m.seen <- 1
	}
	return nil
}

func main() {
	servers, name := strings.Split(os.Args[1], ","), os.Args[2]
	admin, err := sarama.NewClusterAdmin(servers, config())
	must(err)
	defer admin.Close()
	codecs := map[string]sarama.CompressionCodec{
		"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
		"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
	}
	topics := []string{"acks-0", "acks-1", "idempotent", "txn"}
	for codec := range codecs {
		topics = append(topics, codec)
	}
	for _, topic := range topics {
		must(admin.CreateTopic(name+"-"+topic, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 3}, false))
	}
	for codec, number := range codecs {
		made := config()
		made.Producer.Compression = number
		made.Producer.RequiredAcks = sarama.WaitForAll
		produce(servers, name+"-"+codec, 20, made)
		found := read(servers, name+"-"+codec, 20, sarama.ReadUncommitted)
		check(found[0] == "v0" && found[19] == "v19", "%s: %v", codec, found)
	}
	one := config()
	one.Producer.RequiredAcks = sarama.WaitForLocal
	produce(servers, name+"-acks-1", 20, one)
	produce(servers, name+"-acks-0", 1, one)
	none := config()
	none.Producer.RequiredAcks = sarama.NoResponse
	produce(servers, name+"-acks-0", 20, none)
	read(servers, name+"-acks-0", 21, sarama.ReadCommitted)
	same := config()
	same.Producer.Idempotent, same.Producer.RequiredAcks, same.Net.MaxOpenRequests = true, sarama.WaitForAll, 1
	produce(servers, name+"-idempotent", 20, same)

	group, err := sarama.NewConsumerGroup(servers, name+"-group", config())
	must(err)
	ctx, cancel := context.WithCancel(context.Background())
	handler := &member{seen: make(chan int, 100), cancel: cancel}
	ended := make(chan error, 1)
	go func() { ended <- group.Consume(ctx, []string{name + "-idempotent"}, handler) }()
	for i := 0; i < 20; i++ {
		select {
		case <-handler.seen:
		case err := <-ended:
			log.Fatalf("the group ended: %v", err)
		case <-time.After(30 * time.Second):
			log.Fatalf("the group gave %d records", i)
		}
	}
	cancel()
	must(<-ended)
	must(group.Close())
	offsets, err := admin.ListConsumerGroupOffsets(name+"-group", map[string][]int32{name + "-idempotent": {0}})
	must(err)
	check(offsets.GetBlock(name+"-idempotent", 0).Offset == 20, "committed: %v", offsets.GetBlock(name+"-idempotent", 0))
	described, err := admin.DescribeConsumerGroups([]string{name + "-group"})
	must(err)
	check(described[0].State == "Empty", "the group is %s", described[0].State)

	made := config()
	made.Producer.Idempotent, made.Producer.RequiredAcks, made.Net.MaxOpenRequests = true, sarama.WaitForAll, 1
	made.Producer.Transaction.ID = name
	producer, err := sarama.NewSyncProducer(servers, made)
	must(err)
	for _, commits := range []bool{true, false, true} {
		must(producer.BeginTxn())
		_, _, err = producer.SendMessage(&sarama.ProducerMessage{
			Topic: name + "-txn", Value: sarama.StringEncoder(fmt.Sprint(commits)),
		})
		must(err)
		if commits {
			must(producer.AddOffsetsToTxn(map[string][]*sarama.PartitionOffsetMetadata{
				name + "-idempotent": {{Partition: 0, Offset: 7}}}, name+"-txn"))
			must(producer.CommitTxn())
		} else {
			must(producer.AbortTxn())
		}
	}
	must(producer.Close())
	found := read(servers, name+"-txn", 2, sarama.ReadCommitted)
	check(found[0] == "true" && found[1] == "true", "committed records: %v", found)
	offsets, err = admin.ListConsumerGroupOffsets(name+"-txn", map[string][]int32{name + "-idempotent": {0}})
	must(err)
	check(offsets.GetBlock(name+"-idempotent", 0).Offset == 7, "offsets of a transaction")

	must(admin.CreatePartitions(name+"-none", 3, nil, false))
	entries, err := admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: name + "-none"})
	must(err)
	check(len(entries) > 0, "no settings")
	must(admin.DeleteRecords(name+"-gzip", map[int32]int64{0: 5}))
	must(admin.DeleteConsumerGroup(name + "-group"))
	must(admin.DeleteTopic(name + "-gzip"))
	fmt.Println("done")
}
