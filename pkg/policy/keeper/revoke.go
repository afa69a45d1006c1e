package keeper

import (
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

// revokeEvery is the least time between two readings of all known connections.
const revokeEvery = 500 * time.Millisecond

// revoker deletes known connections that are no longer allowed: the next packet of one is judged
// as a first packet. Its methods but revoked are for one goroutine.
type revoker struct {
	asked   bool
	last    time.Time
	revoked atomic.Uint64
	// failed is the error of the last time.
	failed error
}

// ask has the known connections judged soon.
func (r *revoker) ask() { r.asked = true }

// run judges the known connections if that is due, and returns when it will be; 0 is not asked.
func (r *revoker) run(plan *policy.Plan) time.Duration {
	if !r.asked || plan == nil {
		return 0
	}
	if wait := revokeEvery - time.Since(r.last); wait > 0 {
		return wait
	}
	r.last = time.Now()
	n, err := Revoke(plan)
	r.revoked.Add(uint64(n))
	r.failed = err
	if err != nil {
		return revokeEvery
	}
	r.asked = false
	return 0
}

// Revoke deletes the known connections of the node's pods that the plan does not allow, and
// returns how many. Connections of the node itself are always allowed.
func Revoke(plan *policy.Plan) (int, error) {
	own, err := ownAddrs()
	if err != nil {
		return 0, err
	}
	attached := map[netip.Addr]bool{}
	for _, m := range plan.Members {
		for _, a := range m.Addrs {
			attached[a] = true
		}
	}
	return nl.DeleteConnections(func(c nl.Connection) bool {
		f := policy.Flow{Src: c.Client, Dst: c.Server, Proto: policy.Proto(c.Proto), Port: c.Port,
			FromPod: attached[c.Client], ToPod: attached[c.Server], ToNode: own[c.Server]}
		if own[f.Src] || !f.FromPod && !f.ToPod {
			return false
		}
		return plan.Judge(f) != policy.Allow
	})
}

// ownAddrs are the addresses of the node's links.
func ownAddrs() (map[netip.Addr]bool, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	own := make(map[netip.Addr]bool, len(addrs))
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own[p.Addr().WithZone("").Unmap()] = true
		}
	}
	return own, nil
}
