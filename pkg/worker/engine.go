package worker

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"

	"github.com/kubeveil/kubeveil/pkg/engine"
	"github.com/kubeveil/kubeveil/pkg/engine/aead"
	"github.com/kubeveil/kubeveil/pkg/engine/sock"
	"github.com/kubeveil/kubeveil/pkg/worker/confsocket"
	"github.com/kubeveil/kubeveil/pkg/worker/logs"
	"github.com/kubeveil/kubeveil/pkg/worker/tunlink"
)

// Engines that serve a device.
const (
	// EngineKubeveil is package engine. An empty name means the same.
	EngineKubeveil = "kubeveil"
	// EngineWireGuardGo is the library golang.zx2c4.com/wireguard.
	EngineWireGuardGo = "wireguard-go"
)

// Engines are the names of all engines.
var Engines = []string{EngineKubeveil, EngineWireGuardGo}

// CheckEngine returns an error if name is not the name of an engine.
func CheckEngine(name string) error {
	if name == "" || slices.Contains(Engines, name) {
		return nil
	}
	return fmt.Errorf("engine %q: want %s", name, strings.Join(Engines, " or "))
}

// HandsOver reports whether devices of the engine can hand their sessions over to a successor.
func HandsOver(engine string) bool { return engine != EngineWireGuardGo }

// served is a device of one of the engines.
type served interface {
	confsocket.Device
	// begin starts the device after the kept state was restored. The caller calls stop before
	// Close.
	begin(ctx context.Context, s *confsocket.Server) (stop func(), err error)
	// gone returns a channel that is closed when the TUN was removed.
	gone() <-chan struct{}
	Close()
}

func openDevice(o DeviceOptions) (served, error) {
	if err := CheckEngine(o.Engine); err != nil {
		return nil, err
	}
	if o.Engine != EngineWireGuardGo {
		return openEngine(o)
	}
	tunDev, err := tunlink.Open(o.Device, o.MTU)
	if err != nil {
		return nil, err
	}
	dev := device.NewDevice(tunDev, conn.NewStdNetBind(),
		logs.NewLogger(o.Log.With("device", o.Device), o.Debug))
	return &library{dev, o.Device}, nil
}

// library is a device of wireguard-go.
type library struct {
	*device.Device
	name string
}

func (l *library) gone() <-chan struct{} { return l.Wait() }

func (l *library) begin(ctx context.Context, s *confsocket.Server) (func(), error) {
	if up, err := tunlink.IsUp(l.name); err != nil {
		return nil, err
	} else if up {
		if err := l.Up(); err != nil {
			return nil, fmt.Errorf("open the sockets of %s: %w", l.name, err)
		}
	}
	g := newGreeter(l.Device)
	g.greet()
	s.Changed = g.greet
	greeting, stop := context.WithCancel(ctx)
	var greeted sync.WaitGroup
	greeted.Go(func() { g.run(greeting) })
	return func() {
		stop()
		greeted.Wait()
	}, nil
}

// own is a device of package engine, which watches its link and greets its peers itself.
type own struct {
	*engine.Device
	queues tunlink.Queues
	link   *sock.LinkReader
}

// maxShards bounds the default number of shards of a device.
const maxShards = 4

// shards returns the default number of shards on a machine with the given number of CPUs. It is
// half of the CPUs at most, because pods need CPUs too.
func shards(cpus int) int { return max(1, min(maxShards, cpus/2)) }

func openEngine(o DeviceOptions) (served, error) {
	n := o.Shards
	if n == 0 {
		if n = shards(runtime.NumCPU()); runtime.NumCPU() < 4 {
			n = 1
		}
	}
	q, err := tunlink.OpenQueues(o.Device, o.MTU, unix.IFF_MULTI_QUEUE, n)
	if err != nil {
		return nil, err
	}
	d := &own{queues: q}
	if err := d.open(o); err != nil {
		q.Close()
		return nil, err
	}
	return d, nil
}

// engineOptions returns the options of a device without its queues. The caller closes the reader.
func engineOptions(o DeviceOptions) (engine.DeviceConfig, *sock.LinkReader, error) {
	options := engine.DeviceConfig{Log: o.Log.With("device", o.Device), UDPOffload: true}
	switch o.AEAD {
	case "":
	case aead.XCrypto.Name:
		options.Tier = &aead.XCrypto
	default:
		return options, nil, fmt.Errorf("AEAD %q: want %s or none", o.AEAD, aead.XCrypto.Name)
	}
	link, err := sock.NewLinkReader(o.Device)
	if err != nil {
		return options, nil, err
	}
	options.Link = link.Read
	return options, link, nil
}

func (d *own) open(o DeviceOptions) error {
	options, link, err := engineOptions(o)
	if err != nil {
		return err
	}

	for _, fd := range d.queues.FDs {
		queue, udp, err := sock.NewQueue(fd)
		if err != nil {
			link.Close()
			return err
		}
		options.Queues = append(options.Queues, queue)
		options.UDPOffload = options.UDPOffload && udp
	}

	d.link = link
	// Each shard has two threads that run Go code or block in the kernel. The other two are for
	// control and configuration.
	runtime.GOMAXPROCS(2*len(options.Queues) + 2)
	if d.Device, err = engine.New(options); err != nil {
		link.Close()
		return err
	}

	return nil
}

func (d *own) begin(context.Context, *confsocket.Server) (func(), error) { return func() {}, nil }

func (d *own) gone() <-chan struct{} { return d.Wait() }

func (d *own) Close() {
	d.Device.Close()
	d.link.Close()
	d.queues.Close()
}
