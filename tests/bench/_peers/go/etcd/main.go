// Clients of etcd that put.
package main

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"insync.tests/peers/load"
)

// The client has no asynchronous put; a program puts from as many goroutines.
const inFlight = 1000

func connect(servers string) load.Client {
	client, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(servers, ","), DialTimeout: 30 * time.Second})
	load.Must(err)
	put := func(record []byte) error {
		_, err := client.Put(context.Background(), "bench", string(record))
		return err
	}
	return load.Client{
		One: put,
		Many: func(record []byte, count int) error {
			begun, waits := atomic.Int64{}, sync.WaitGroup{}
			for range inFlight {
				waits.Go(func() {
					for begun.Add(1) <= int64(count) {
						load.Must(put(record))
					}
				})
			}
			waits.Wait()
			return nil
		},
		Clear: func() error { return nil },
	}
}

func main() {
	load.Run(connect)
}
