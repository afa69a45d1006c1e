package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
)

// Maps of bpf/lib/service/host_port.h: the host ports of pods, the pods that used one, and a bit for
// each port of a pod that was used by one.
const (
	mapPorts    = "service_ports"
	mapDNAT     = "service_dnat"
	mapDNATBits = "service_dnatbits"
)

// Pods are the records of the CNI plugin. pod.Paths implements it.
type Pods interface {
	// Load returns the record of a pod's link. The error matches pod.ErrNotFound if there is none.
	Load(hostLink string) (pod.Record, error)
}

// portKey, portPod and dnatKey are struct host_port, host_port_pod and dnat_client.
type (
	portKey struct {
		Addr          [16]byte
		Port          [2]byte
		Proto, Family uint8
	}
	portPod struct {
		Addr [16]byte
		Port [2]byte
		_    [2]byte
	}
	dnatKey struct {
		Client, Pod [16]byte
		Port        [2]byte
		Proto       uint8
		_           uint8
	}
	rangeKey struct { // struct range_key of bpf/lib/guard/ranges.h
		Bits uint32
		Addr [16]byte
	}
)

// hostPorts are the host ports of the pods on this node.
type hostPorts struct {
	sync.Mutex
	// known reports for each link of a pod, by its index, whether mapPorts has all its host ports.
	known map[int]bool
	links map[netip.Addr]uint32 // the indexes of links by the pods' addresses
	owner map[portKey]int       // the link whose host port it is
	// complete reports whether the programs know the connections of before this process.
	complete bool
}

// linkOf returns the index of the link of a pod, or 0 if no record has the address.
func (p *hostPorts) linkOf(a netip.Addr) uint32 {
	p.Lock()
	defer p.Unlock()
	return p.links[a]
}

// loadPorts writes the host ports of pods' links to mapPorts, if they have a record.
func (s *Links) loadPorts(links []nl.Link) {
	if s.pods == nil {
		return
	}
	s.ports.Lock()
	defer s.ports.Unlock()
	for _, l := range links {
		index, name := l.Attrs().Index, l.Attrs().Name
		if l.Attrs().Group != abi.PodGroup || s.ports.known[index] {
			continue
		}

		r, err := s.pods.Load(name)
		if err == nil {
			err = s.putPorts(index, r)
		}
		if err != nil && !errors.Is(err, pod.ErrNotFound) {
			s.log.Warn("host ports of a pod are not known; its packets take the slow path",
				"link", name, "error", err)
		}

		s.ports.known[index] = err == nil && r.HostPorts != nil
		for _, a := range r.Addrs {
			s.ports.links[a] = uint32(index)
		}
	}
}

// putPorts writes the host ports of one pod. The caller holds the lock.
func (s *Links) putPorts(index int, r pod.Record) error {
	for _, p := range r.HostPorts {
		for _, a := range r.Addrs {
			if p.Addr.IsValid() && p.Addr.Is4() != a.Is4() {
				continue
			}
			key := portKey{Port: service.PortOf(netip.AddrPortFrom(a, p.Port)),
				Proto: unix.IPPROTO_TCP, Family: 6}
			if p.Addr.IsValid() {
				key.Addr = p.Addr.As16()
			}
			if p.UDP {
				key.Proto = unix.IPPROTO_UDP
			}
			if a.Is4() {
				key.Family = 4
			}
			to := portPod{Addr: a.As16(), Port: service.PortOf(netip.AddrPortFrom(a, p.PodPort))}
			if err := s.table.Map(mapPorts).Put(key, to); err != nil {
				return fmt.Errorf("write map %s: %w", mapPorts, err)
			}
			s.ports.owner[key] = index
		}
	}
	return nil
}

// portsKnown reports whether the programs know the host ports of the pod at a link.
func (s *Links) portsKnown(index int) bool {
	if s.pods == nil {
		return true
	}
	s.ports.Lock()
	defer s.ports.Unlock()
	return s.ports.known[index]
}

// addUses adds the connections between pods through netfilter's DNAT that no program saw: those of
// before this process, and those of a pod that did not have the fast path.
func (s *Links) addUses() error {
	s.ports.Lock()
	defer s.ports.Unlock()
	if s.pods == nil || s.ports.complete && len(s.ports.owner) == 0 {
		return nil
	}
	err := s.addDNAT()
	s.ports.complete = s.ports.complete || err == nil
	return err
}

// dropPorts deletes the host ports that an earlier process wrote and loadPorts, with all links, did
// not.
func (s *Links) dropPorts() error {
	s.ports.Lock()
	defer s.ports.Unlock()
	return s.deletePorts(func(k portKey) bool { _, has := s.ports.owner[k]; return !has })
}

// deletePorts deletes host ports. The caller holds the lock.
func (s *Links) deletePorts(gone func(portKey) bool) error {
	var keys []portKey
	err := bpfmaps.Each(s.table, mapPorts, func(k portKey, _ portPod) bool {
		if gone(k) {
			keys = append(keys, k)
		}
		return true
	})
	for _, k := range keys {
		delete(s.ports.owner, k)
	}
	return errors.Join(err, bpfmaps.Delete(s.table, mapPorts, keys))
}

// forgetPorts deletes the host ports of links that no longer exist.
func (s *Links) forgetPorts(there map[uint32]bool) error {
	s.ports.Lock()
	defer s.ports.Unlock()
	lost := false
	maps.DeleteFunc(s.ports.links, func(_ netip.Addr, index uint32) bool { return !there[index] })
	for index := range s.ports.known {
		if !there[uint32(index)] {
			delete(s.ports.known, index)
			lost = true
		}
	}
	if !lost || len(s.ports.owner) == 0 {
		return nil
	}
	return s.deletePorts(func(k portKey) bool { return !there[uint32(s.ports.owner[k])] })
}

// mayBypass reports whether replies to the client of a connection may take the fast path: it is a
// pod of this node or, for UDP, has an address of the cluster.
func (s *Links) mayBypass(t nl.Tracked) bool {
	if s.ports.links[t.Client] > 0 {
		return true
	}
	var in uint8
	key := rangeKey{Bits: 128, Addr: t.Client.As16()}
	return t.Proto == unix.IPPROTO_UDP && s.table.Map(abi.PinRanges).Lookup(key, &in) == nil
}

// addDNAT adds the connections to pods of the node whose destination netfilter has translated: those
// of pods of the node, and the UDP flows of other nodes' pods. Programs see the later ones. The
// caller holds the lock.
func (s *Links) addDNAT() error {
	c, err := nfnl.Open()
	if err != nil {
		return err
	}
	defer c.Close()
	found := map[dnatKey]bool{}
	err = nl.EachTracked(c, func() { clear(found) }, func(t nl.Tracked) {
		server := netip.AddrPortFrom(t.Server, t.Port)
		if s.ports.links[t.Server] > 0 && t.Original != server && s.mayBypass(t) {
			found[dnatKey{Client: t.Client.As16(), Pod: t.Server.As16(),
				Port: service.PortOf(server), Proto: t.Proto}] = true
		}
	})
	if err != nil {
		return err
	}

	now := bpfmaps.Now()
	for k := range found {
		// The whole word, because a program may set another bit of it meanwhile.
		word := uint32(binary.BigEndian.Uint16(k.Port[:])) / 64
		if err := s.table.Map(mapDNATBits).Put(word, ^uint64(0)); err != nil {
			return fmt.Errorf("write map %s: %w", mapDNATBits, err)
		}
		if err := s.table.Map(mapDNAT).Put(k, now); err != nil {
			return fmt.Errorf("write map %s: %w", mapDNAT, err)
		}
	}
	return nil
}
