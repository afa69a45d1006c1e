package bpfmaps

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/internal/sockdiag"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// socketPair is the last service and backend of a socket (struct socket_pair in
// bpf/lib/service/socket_pair.h), and socketStorage the value of the map service_sockets (struct
// socket_storage in the same header).
type socketPair struct {
	Revision                 uint64
	Service, Backend         [16]byte
	ServicePort, BackendPort [2]byte
	Flags                    uint32
}

type socketStorage struct {
	Lock, Pad uint32
	Pair      socketPair
}

// pairDirect is the flag of a pair whose backend the socket uses by its own address
// (PAIR_DIRECT).
const pairDirect = 1

// socketReplyKey and socketReply are key and value of the map service_replies (struct
// socket_key and struct socket_reply in the same header).
type socketReplyKey struct {
	Cookie uint64
	Addr   [16]byte
	Port   [2]byte
	Pad    [6]byte
}

type socketReply struct {
	Addr [16]byte
	Port [2]byte
	Pad  [2]byte
}

// serviceOf returns the service that a connected socket reached its peer by. pair is the pair of
// the socket's storage. The zero value means that it reached its peer without a service.
func (t *Table) serviceOf(s sockdiag.Socket, pair socketPair) (socketReply, error) {
	peer, port := s.Remote.Addr().As16(), service.PortOf(s.Remote)
	if pair.Backend == peer && pair.BackendPort == port {
		if pair.Flags&pairDirect != 0 {
			return socketReply{}, nil
		}
		return socketReply{Addr: pair.Service, Port: pair.ServicePort}, nil
	}

	var asked socketReply
	key := socketReplyKey{Cookie: s.Cookie, Addr: peer, Port: port}
	err := t.maps[mapReplies].Lookup(key, &asked)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return socketReply{}, fmt.Errorf("read %s: %w", mapReplies, err)
	}
	return asked, nil
}

// pairOf returns the pair of a TCP socket. It is zero if the socket has no storage.
func pairOf(s sockdiag.Socket) (pair socketPair) {
	var stored socketStorage
	if _, err := binary.Decode(s.Storage, binary.NativeEndian, &stored); err == nil {
		return stored.Pair
	}
	return pair
}

// pairProgram is the program that returns the pair of a UDP socket. pairQuestion is its packet
// (struct pair_question in bpf/progs/service_socket.c), and pairLink its context: struct __sk_buff
// up to ifindex.
const pairProgram = "service_pair"

type pairQuestion struct {
	Frame [16]byte
	Tuple [36]byte
	IPv6  uint32
	Pair  socketPair
}

type pairLink struct {
	_     [40]byte
	Index uint32
}

// pairOfUDP returns the pair of a connected UDP socket of the calling thread's network namespace.
// It is zero if the socket has no storage, or is gone.
func (t *Table) pairOfUDP(s sockdiag.Socket) (socketPair, error) {
	q := pairQuestion{IPv6: 1}
	peer, own := s.Remote.Addr().AsSlice(), s.Local.Addr().AsSlice()
	if s.Remote.Addr().Is4() {
		q.IPv6 = 0
	}
	local, remote := service.PortOf(s.Local), service.PortOf(s.Remote)
	copy(q.Tuple[:], slices.Concat(peer, own, remote[:], local[:]))
	packet, err := binary.Append(nil, binary.NativeEndian, &q)
	if err != nil {
		return socketPair{}, err
	}

	o := ebpf.RunOptions{Data: packet, DataOut: make([]byte, len(packet)),
		Context: pairLink{Index: uint32(s.Interface)}}
	if _, err := t.progs[pairProgram].Run(&o); err != nil {
		return socketPair{}, fmt.Errorf("read the storage of a socket: %w", err)
	}
	_, err = binary.Decode(o.DataOut, binary.NativeEndian, &q)
	return q.Pair, err
}

// mostGiven bounds the sockets that Given reads, and that AbortUDP looks up, in one network
// namespace. mostGivenAll bounds the sockets that Given reads in all. To read one takes about 2 us.
const (
	mostGiven    = 1 << 16
	mostGivenAll = 1 << 18
)

// Given returns the backends to which TCP sockets in these network namespaces are connected by one
// of the frontends, each once, sorted. namespaces are paths. A path that is gone is not an error.
// In each namespace it finds at most service.MaxAPIServers backends and reads at most 65,536
// sockets. Except in the first one, it reads at most an equal share of the 262,144 sockets that
// earlier namespaces did not need. The error reports in how many it stopped there. It continues
// after an error.
func (t *Table) Given(frontends []netip.AddrPort, namespaces ...string) ([]netip.AddrPort, error) {
	var given []netip.AddrPort
	var errs []error
	left, cut := mostGivenAll, 0
	for i, ns := range namespaces {
		read, most := 0, shareOfGiven(i, len(namespaces), left)
		found := map[netip.AddrPort]bool{}

		err := netns.Do(ns, func() error {
			storage := t.maps[mapSockets].FD()
			return sockdiag.EachStored(storage, func(s sockdiag.Socket) bool {
				read++
				asked, err := t.serviceOf(s, pairOf(s))
				if err != nil {
					errs = append(errs, err)
					return false
				}
				if slices.Contains(frontends, service.AddrPortOf(asked.Addr, asked.Port)) {
					found[s.Remote] = true
				}
				return read < most && len(found) < service.MaxAPIServers
			})
		})
		if err != nil && !errors.Is(err, netns.ErrNotFound) {
			errs = append(errs, fmt.Errorf("list TCP sockets in %s: %w", ns, err))
		}
		if left -= read; read == most {
			cut++
		}
		given = slices.AppendSeq(given, maps.Keys(found))
	}

	if cut > 0 {
		errs = append(errs, fmt.Errorf("%d network namespaces have more TCP sockets than veild reads "+
			"at its start", cut))
	}
	slices.SortFunc(given, netip.AddrPort.Compare)
	return slices.Compact(given), errors.Join(errs...)
}

// shareOfGiven returns how many sockets Given reads in namespace i of n, if it and the later ones
// have left.
func shareOfGiven(i, n, left int) int {
	if i == 0 {
		return min(mostGiven, left)
	}
	return min(mostGiven, left/(n-i))
}
