package bpfmaps

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/internal/sockdiag"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/probe"
)

// AbortUDP disconnects UDP sockets that are connected to a service if their chosen backend is no
// longer a member or the service is deleted. Their datagrams would be lost silently. The next use
// of such a socket gets ECONNABORTED, and a new connect gets another backend. It does not touch TCP
// sockets, sockets that connected to the backend's own address, and unconnected sockets, which look
// up the table for each datagram.
//
// namespaces are paths of network namespaces. The node's own is /proc/self/ns/net. A path that is
// gone is not an error. Call it after an Apply that removed members or frontends of UDP. It may
// miss a socket that connected during that Apply, until the next call. It continues after an error
// and returns the number of disconnected sockets. The error matches bpfobj.ErrNotSupported if the
// kernel cannot disconnect sockets of others. In each namespace it looks up at most 65,536 sockets,
// for 20 to 30 us each, and logs that one has more.
func (t *Table) AbortUDP(namespaces ...string) (int, error) {
	aborted := 0
	var errs []error
	var crowded []string
	for _, ns := range namespaces {
		err := netns.Do(ns, func() error {
			n, more, err := t.abortUDP()
			if aborted += n; more {
				crowded = append(crowded, ns)
			}
			return err
		})
		if errors.Is(err, sockdiag.ErrNotSupported) {
			return aborted, &probe.FeatureError{What: "closing sockets of others",
				Since: "4.5", Err: err,
				Do: "use a kernel with CONFIG_INET_DIAG_DESTROY and CONFIG_INET_UDP_DIAG"}
		}
		if err != nil && !errors.Is(err, netns.ErrNotFound) {
			errs = append(errs, fmt.Errorf("disconnect UDP sockets in %s: %w", ns, err))
		}
	}

	if was := t.crowded.Swap(len(crowded) > 0); !was && len(crowded) > 0 {
		t.log.Warn("some connected UDP sockets may still send to removed backends, because their "+
			"network namespace has too many", "searched", t.mostUDP, "namespaces", crowded)
	}
	return aborted, errors.Join(errs...)
}

// abortUDP is AbortUDP for the calling thread's network namespace. crowded reports whether it has
// more sockets than are looked up.
func (t *Table) abortUDP() (n int, crowded bool, err error) {
	var errs []error
	left := t.mostUDP
	n, err = sockdiag.CloseIf(unix.IPPROTO_UDP, func(s sockdiag.Socket) bool {
		if left--; left < 0 {
			return false
		}
		stale, err := t.stale(s)
		if err != nil {
			errs = append(errs, err)
		}
		return stale
	})
	return n, left < 0, errors.Join(append(errs, err)...)
}

// stale reports whether the table chose the socket's backend and would not choose it any more.
func (t *Table) stale(s sockdiag.Socket) (bool, error) {
	pair, err := t.pairOfUDP(s)
	if err != nil {
		return false, err
	}
	asked, err := t.serviceOf(s, pair)
	if err != nil || asked == (socketReply{}) {
		return false, err
	}
	key := service.FrontendKey{Addr: asked.Addr, Port: asked.Port, Protocol: service.UDP,
		Scope: service.Inside}
	run, err := t.run(key)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("read backends of %v: %w", key.AddrPort(), err)
	}
	return !slices.ContainsFunc(run, func(b service.Backend) bool {
		return b.Addr == s.Remote.Addr().As16() && b.Port == service.PortOf(s.Remote)
	}), nil
}

// errUnsteady is the error of a frontend that changes with each look-up.
var errUnsteady = errors.New("it changes all the time")

// runTries is the number of times that a run is read while its frontend changes.
const runTries = 8

// run returns all backends of a frontend, as a program reads them: it looks the frontend up again.
// The error is ebpf.ErrKeyNotExist if there is no such frontend.
func (t *Table) run(key service.FrontendKey) ([]service.Backend, error) {
	var f, again service.Frontend
	if err := t.maps[mapFrontends].Lookup(key, &again); err != nil {
		return nil, err
	}
	for range runTries {
		f = again
		run, err := t.slots.Run(f.First, f.End())
		if err != nil {
			return nil, err
		}
		if err := t.maps[mapFrontends].Lookup(key, &again); err != nil {
			return nil, err
		}
		if f == again {
			return run, nil
		}
	}
	return nil, errUnsteady
}
