// Package load measures a store of records, and prints one line of JSON: records a second, or seconds until one is stored.
package load

import (
	"encoding/json"
	"flag"
	"log"
	"os"
	"sort"
	"sync"
	"time"
)

// A Client stores records; all of its functions return when the servers have acknowledged them.
type Client struct {
	One func(record []byte) error
	// Many stores `count` records, with as many in flight as a program would have.
	Many func(record []byte, count int) error
	// Clear deletes all that was stored.
	Clear func() error
}

// Must ends the program with an error.
func Must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// Run parses the flags, and measures. A client has a connection of its own.
func Run(connect func(servers string) Client) {
	servers := flag.String("servers", "", "their addresses, with commas between")
	kind := flag.String("kind", "rate", "rate: of one client. latency: at a rate. many: of clients with one record in flight each")
	count := flag.Int("count", 1, "records (rate, latency)")
	size := flag.Int("size", 100, "bytes of a record")
	perSecond := flag.Int("per-second", 1, "records (latency)")
	warm := flag.Int("warm", 0, "records before the first that counts (latency)")
	clients := flag.Int("clients", 1, "how many (many)")
	seconds := flag.Float64("seconds", 1, "how long (many)")
	flag.Parse()
	first, record := connect(*servers), make([]byte, *size)
	var found map[string]float64
	switch *kind {
	case "rate":
		start := time.Now()
		Must(first.Many(record, *count))
		found = map[string]float64{"rate": float64(*count) / time.Since(start).Seconds()}
	case "latency":
		found = latency(first, record, *warm, *count, *perSecond)
	case "many":
		all := []Client{first}
		for len(all) < *clients {
			all = append(all, connect(*servers))
		}
		found = map[string]float64{"rate": inTurn(all, record, time.Duration(*seconds*float64(time.Second)))}
	default:
		log.Fatalf("no such kind: %q", *kind)
	}
	Must(first.Clear())
	Must(json.NewEncoder(os.Stdout).Encode(found))
}

func latency(client Client, record []byte, warm, count, perSecond int) map[string]float64 {
	taken, waits := make([]float64, warm+count), sync.WaitGroup{}
	start := time.Now()
	for i := range taken {
		time.Sleep(time.Until(start.Add(time.Duration(i) * time.Second / time.Duration(perSecond))))
		waits.Go(func() {
			begun := time.Now()
			Must(client.One(record))
			taken[i] = time.Since(begun).Seconds()
		})
	}
	waits.Wait()
	taken = taken[warm:]
	sort.Float64s(taken)
	return map[string]float64{"p50": taken[len(taken)/2], "p99": taken[len(taken)*99/100]}
}

// inTurn has each client store one record after the other, all clients at once; records a second of all together.
func inTurn(clients []Client, record []byte, length time.Duration) float64 {
	stored, waits := make([]int, len(clients)), sync.WaitGroup{}
	start := time.Now()
	for i, client := range clients {
		waits.Go(func() {
			for time.Since(start) < length {
				Must(client.One(record))
				if time.Since(start) < length {
					stored[i]++
				}
			}
		})
	}
	waits.Wait()
	total := 0
	for _, each := range stored {
		total += each
	}
	return float64(total) / length.Seconds()
}
