package engine

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
	"github.com/kubeveil/kubeveil/pkg/worker"
)

const innerC = "198.19.0.3"

// While a pod floods a peer behind a slow link with a long queue, changes of the configuration are
// applied, and packets of another peer pass. If a thread waited 100 ms for room while it held the
// device's lock, the changes here would take half a minute.
func TestSlowLinkHoldsUpNoConfiguration(t *testing.T) {
	nettest.NeedProgram(t, "tc")
	const changes, patience = 300, 20 * time.Second

	for _, o := range outers {
		t.Run(o.name, func(t *testing.T) {
			w := apart(t, worker.EngineKubeveil, o)
			w.peerC(t, o)
			errtest.Must(t, w.spaces[nodeA].Do(func() error {
				return exec.Command("tc", "qdisc", "add", "dev", "eth1", "root", "tbf", "rate",
					"2mbit", "burst", "32kb", "limit", "64mb").Run()
			}))
			e := w.echoes(t)
			e.flow(t, 10, 30*time.Second)
			w.floodC(t)

			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			b := peers(t, w.socket(nodeA))[0]
			for i := range changes {
				err := configure(ctx, w.socket(nodeA), fmt.Sprintf(
					"public_key=%s\nupdate_only=true\nallowed_ip=198.19.1.%d/32\n", b, i%256))
				errtest.Must(t, err)
				if ctx.Err() != nil {
					t.Fatalf("%d changes of %d were applied in %s", i, changes, patience)
				}
			}
			e.flow(t, 10, patience)
		})
	}
}

// peers returns the public keys of a device's peers.
func peers(t *testing.T, socket string) (keys []string) {
	t.Helper()
	lines, err := get(socket)
	errtest.Must(t, err)
	for _, line := range lines {
		if key, ok := strings.CutPrefix(line, "public_key="); ok {
			keys = append(keys, key)
		}
	}
	return keys
}

// peerC starts a device process in the router's namespace. It is a peer of node a, whose packets
// leave through eth1.
func (w *world) peerC(t *testing.T, o outer) {
	t.Helper()
	c := &world{side: w.side, engines: w.engines, mtu: w.mtu, dir: w.dir + "/c"}
	c.spaces[nodeA] = w.spaces[router]
	t.Cleanup(func() {
		c.spaces[nodeA] = nil
		c.close()
	})
	errtest.Must(t, c.start(nodeA, 1400))

	key, err := wgkey.Generate()
	errtest.Must(t, err)
	own, public := key.Bytes(), key.Public()
	errtest.Must(t, configure(t.Context(), c.socket(nodeA), fmt.Sprintf(
		"private_key=%s\nlisten_port=%d\npublic_key=%s\nallowed_ip=%s/32\n",
		hex.EncodeToString(own[:]), port, peers(t, w.socket(nodeB))[0], innerA)))
	errtest.Must(t, w.spaces[router].IP(t.Context(), "addr add "+innerC+"/24 dev veil0"))
	errtest.Must(t, configure(t.Context(), w.socket(nodeA), fmt.Sprintf(
		"public_key=%s\nendpoint=%s\nallowed_ip=%s/32\n", hex.EncodeToString(public[:]),
		net.JoinHostPort(o.r1, fmt.Sprint(port)), innerC)))
}

// floodC sends datagrams from node a to peer c until the test ends. It returns when the first one
// has arrived, and more were sent than eth1 carries in a minute.
func (w *world) floodC(t *testing.T) {
	t.Helper()
	var server, client *net.UDPConn
	errtest.Must(t, w.spaces[router].Do(func() (err error) {
		server, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(innerC)})
		return err
	}))
	defer server.Close()
	errtest.Must(t, w.spaces[nodeA].Do(func() (err error) {
		client, err = net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(innerA)},
			server.LocalAddr().(*net.UDPAddr))
		return err
	}))

	const enough = 12000
	many, ended := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() {
		client.Close()
		<-ended
	})
	go func() {
		defer close(ended)
		for n, packet := 0, make([]byte, 1300); ; n++ {
			if _, err := client.Write(packet); err != nil {
				return
			}
			if n == enough {
				close(many)
			}
		}
	}()

	errtest.Must(t, server.SetReadDeadline(time.Now().Add(30*time.Second)))
	_, err := server.Read(make([]byte, 1500))
	errtest.Must(t, err)
	<-many
}
