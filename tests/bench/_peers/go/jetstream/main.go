// Producers of a JetStream cluster of three.
package main

import (
	"time"

	"github.com/nats-io/nats.go"

	"insync.tests/peers/load"
)

// By default a publication fails when 4,000 have been in flight for 200 ms.
var patient = nats.StallWait(30 * time.Second)

func first(stream nats.JetStreamContext) error {
	_, err := stream.AddStream(&nats.StreamConfig{Name: "bench", Subjects: []string{"bench"}, Replicas: 3})
	if err == nil {
		_, err = stream.Publish("bench", nil)
	}
	return err
}

func connect(servers string) load.Client {
	connection, err := nats.Connect(servers)
	load.Must(err)
	stream, err := connection.JetStream(nats.PublishAsyncMaxPending(4000), nats.MaxWait(30*time.Second))
	load.Must(err)
	deadline := time.Now().Add(60 * time.Second)
	for {
		// Only when a first message is stored do all servers know the way to the stream.
		if err = first(stream); err == nil || time.Now().After(deadline) {
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	load.Must(err)
	return load.Client{
		One: func(record []byte) error {
			_, err := stream.Publish("bench", record)
			return err
		},
		Many: func(record []byte, count int) error {
			// A publication that fails has its error in its future alone.
			sent := make([]nats.PubAckFuture, count)
			for i := range sent {
				if sent[i], err = stream.PublishAsync("bench", record, patient); err != nil {
					return err
				}
			}
			<-stream.PublishAsyncComplete()
			for _, each := range sent {
				select {
				case <-each.Ok():
				case err := <-each.Err():
					return err
				}
			}
			return nil
		},
		Clear: func() error { return stream.DeleteStream("bench") },
	}
}

func main() {
	load.Run(connect)
}
