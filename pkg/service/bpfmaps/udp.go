package bpfmaps

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/internal/sockdiag"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/probe"
)

// socketPeer and socketAddr are key and value of the map service_replies (struct socket_reply_key
// and struct socket_reply in bpf/lib/service/socket.h).
type socketPeer struct {
	Cookie uint64
	Addr   [16]byte
	Port   [2]byte
	Pad    [6]byte
}

type socketAddr struct {
	Addr [16]byte
	Port [2]byte
	Pad  [2]byte
}

// AbortUDP disconnects UDP sockets that are connected to a service if their chosen backend is no
// longer a member or the service is deleted. Their datagrams would be lost silently. The next use
// of such a socket gets ECONNABORTED, and a new connect gets another backend. It does not touch TCP
// sockets, sockets that connected to the backend's own address, and unconnected sockets, which look
// up the table for each datagram.
//
// namespaces are paths of network namespaces. The node's own is /proc/self/ns/net. A path that is
// gone is not an error. Call it after an Apply that removed members or frontends of UDP. It may
// miss a socket that connected during that Apply, until the next call. It continues after an error
// and returns the number of disconnected sockets. The error matches ErrNotSupported if the kernel
// cannot disconnect sockets of others.
func (t *Table) AbortUDP(namespaces ...string) (int, error) {
	aborted := 0
	var errs []error
	for _, ns := range namespaces {
		err := netns.Do(ns, func() error {
			n, err := t.abortUDP()
			aborted += n
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
	return aborted, errors.Join(errs...)
}

// abortUDP is AbortUDP for the calling thread's network namespace.
func (t *Table) abortUDP() (int, error) {
	var errs []error
	n, err := sockdiag.CloseIf(unix.IPPROTO_UDP, func(s sockdiag.Socket) bool {
		stale, err := t.stale(s)
		if err != nil {
			errs = append(errs, err)
		}
		return stale
	})
	return n, errors.Join(append(errs, err)...)
}

// stale reports whether the table chose the socket's backend and would not choose it any more.
func (t *Table) stale(s sockdiag.Socket) (bool, error) {
	peer := socketPeer{Cookie: s.Cookie, Addr: s.Remote.Addr().As16()}
	binary.BigEndian.PutUint16(peer.Port[:], s.Remote.Port())
	var asked socketAddr
	if err := t.maps[mapReplies].Lookup(peer, &asked); errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("read %s: %w", mapReplies, err)
	}
	var frontend service.Frontend
	key := service.FrontendKey{Addr: asked.Addr, Port: asked.Port, Protocol: service.UDP,
		Scope: service.Inside}
	if err := t.maps[mapFrontends].Lookup(key, &frontend); errors.Is(err, ebpf.ErrKeyNotExist) {
		return true, nil
	} else if err != nil {
		return false, fmt.Errorf("read %s: %w", mapFrontends, err)
	}
	var state service.Member
	err := t.maps[mapMembers].Lookup(service.MemberKey{Group: frontend.Group, Addr: peer.Addr,
		Port: peer.Port}, &state)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, fmt.Errorf("read %s: %w", mapMembers, err)
	}
	return err != nil, nil
}
