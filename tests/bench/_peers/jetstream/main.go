// A JetStream cluster's producers: race SERVERS rate|latency REPLICAS COUNT SIZE PER_SECOND WARM; prints one line of JSON.
package main

import (
	"encoding/json"
	"log"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func number(at int) int {
	found, err := strconv.Atoi(os.Args[at])
	must(err)
	return found
}

func main() {
	connection, err := nats.Connect(os.Args[1])
	must(err)
	defer connection.Close()
	stream, err := connection.JetStream(nats.PublishAsyncMaxPending(4000))
	must(err)
	replicas, count, size, perSecond, warm := number(3), number(4), number(5), number(6), number(7)
	deadline := time.Now().Add(60 * time.Second)
	for {
		_, err = stream.AddStream(&nats.StreamConfig{Name: "bench", Subjects: []string{"bench"}, Replicas: replicas})
		if err == nil || time.Now().After(deadline) {
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	must(err)
	data := make([]byte, size)
	start := time.Now()
	if os.Args[2] == "rate" {
		for i := 0; i < count; i++ {
			_, err := stream.PublishAsync("bench", data)
			must(err)
		}
		<-stream.PublishAsyncComplete()
		taken := time.Since(start).Seconds()
		must(stream.DeleteStream("bench"))
		must(json.NewEncoder(os.Stdout).Encode(map[string]float64{"rate": float64(count) / taken}))
		return
	}
	taken, lock, waits := make([]float64, 0, count), sync.Mutex{}, sync.WaitGroup{}
	for i := 0; i < warm+count; i++ {
		time.Sleep(time.Until(start.Add(time.Duration(i) * time.Second / time.Duration(perSecond))))
		begun := time.Now()
		future, err := stream.PublishAsync("bench", data)
		must(err)
		waits.Add(1)
		go func() {
			defer waits.Done()
			select {
			case <-future.Ok():
				if since := time.Since(begun).Seconds(); i >= warm {
					lock.Lock()
					taken = append(taken, since)
					lock.Unlock()
				}
			case err := <-future.Err():
				log.Fatal(err)
			}
		}()
	}
	waits.Wait()
	sort.Float64s(taken)
	must(json.NewEncoder(os.Stdout).Encode(map[string]float64{
		"p50": taken[len(taken)/2], "p99": taken[len(taken)*99/100],
	}))
}
