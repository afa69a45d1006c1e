package prober

import (
	"net/http"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/pkg/service/apiserver/prober/probertest"
)

func TestProbesSlowDownWithTheCluster(t *testing.T) {
	for name, c := range map[string]struct {
		nodes         int
		ping, connect time.Duration
	}{
		"unknown":      {0, 250 * time.Millisecond, 500 * time.Millisecond},
		"1,000 nodes":  {1000, 250 * time.Millisecond, 500 * time.Millisecond},
		"10,000 nodes": {10000, 2500 * time.Millisecond, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			var p Pace
			p.SetNodes(c.nodes)
			if got := p.Ping(); got != c.ping {
				t.Errorf("pings every %v, want %v", got, c.ping)
			}
			var connects time.Duration
			for range 1000 {
				if got := phase(p.Ping()); got < 0 || got >= c.ping {
					t.Fatalf("phase %v of %v", got, c.ping)
				}
				got := p.connect()
				if got < c.connect/2 || got >= c.connect*3/2 {
					t.Fatalf("connects after %v, want about %v", got, c.connect)
				}
				connects += got / 1000
			}
			if connects < c.connect*9/10 || connects > c.connect*11/10 {
				t.Errorf("connects every %v in the mean, want %v", connects, c.connect)
			}
		})
	}
}

// A probe that pings once in 100 s pings at once when ask receives a value.
func TestProbeIsAsked(t *testing.T) {
	addr, freeze, _ := probertest.Serve(t, true, http.NotFound)
	ask := make(chan struct{}, 1)
	said := probing(t, addr, func(p *Target) {
		p.Ask = ask
		p.Pace.SetNodes(400_000)
	})
	until(t, said, true)
	freeze()
	ask <- struct{}{}
	until(t, said, false)
}
