// The modules that these need in turn follow from these four; `go build -mod=mod` adds them to a copy.
module insync.tests/peers

go 1.26.0

require (
	github.com/nats-io/nats-server/v2 v2.15.2
	github.com/nats-io/nats.go v1.55.0
	go.etcd.io/etcd/client/v3 v3.7.3
	go.etcd.io/etcd/server/v3 v3.7.3
)

tool (
	github.com/nats-io/nats-server/v2
	go.etcd.io/etcd/server/v3
)
