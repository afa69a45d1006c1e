package flow

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/internal/sockdiag"
)

// socketsKept bounds the sockets that one page compares with conntrack.
const socketsKept = 1 << 16

// sockets holds connected sockets of host processes. A socket whose connection conntrack does not
// have is of a connection that it does not track.
type sockets struct {
	byKey map[key]sockdiag.Socket
	// tracked holds the keys of the sockets whose connections conntrack has.
	tracked map[key]struct{}
	// beyond reports whether there are more sockets than socketsKept.
	beyond bool
}

var protocols = map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP}

// socketsOf returns the connected sockets of host processes whose other end is on another host.
func (w *world) socketsOf() (s sockets, err error) {
	s = sockets{byKey: map[key]sockdiag.Socket{}, tracked: map[key]struct{}{}}
	for name, protocol := range protocols {
		err := sockdiag.Each(protocol, func(k sockdiag.Socket) bool {
			if a := k.Remote.Addr(); a.IsLoopback() || a.IsUnspecified() || w.assigned[a] {
				return true
			}
			if s.beyond = len(s.byKey) >= socketsKept; !s.beyond {
				s.byKey[key{k.Local.Addr(), k.Remote.Addr(), name, k.Local.Port(), k.Remote.Port()}] = k
			}
			return !s.beyond
		})
		if err != nil {
			return s, fmt.Errorf("read the sockets of host processes: %w", err)
		}
	}
	return s, nil
}

// readSockets sets p.sockets. A kernel that does not show sockets adds a note.
func (p *reading) readSockets() (err error) {
	p.sockets, err = p.socketsOf()
	switch {
	case errors.Is(err, sockdiag.ErrNotSupported):
		p.notes = append(p.notes, "Not seen: untracked connections of host processes, because the "+
			"kernel lacks CONFIG_INET_DIAG.")
		p.sockets = sockets{}
		return nil
	case p.sockets.beyond:
		p.notes = append(p.notes, fmt.Sprintf("Not seen: untracked connections of host processes "+
			"with more than %d connected sockets.", socketsKept))
	}
	return err
}

// addUntracked adds the connections of p.sockets that conntrack does not have.
func (p *reading) addUntracked() error {
	if len(p.sockets.byKey) == len(p.sockets.tracked) {
		return nil
	}
	later, err := p.socketsOf()
	if err != nil {
		return err
	}
	for _, c := range p.sockets.untracked(later) {
		p.add(c)
	}
	return p.err
}

// forget forgets which connections conntrack has.
func (s *sockets) forget() { clear(s.tracked) }

// track records that conntrack has the connection c, whose ends may both be sockets of this node. A
// client's socket has the address that it connected to, before NAT.
func (s *sockets) track(c connection, behind key) {
	ends := [2]key{behind, {behind.dst, behind.src, behind.proto, behind.dstPort, behind.srcPort}}
	ends[0].dst, ends[0].dstPort = c.Original.Addr(), c.Original.Port()
	for _, k := range ends {
		if _, is := s.byKey[k]; is {
			s.tracked[k] = struct{}{}
		}
	}
}

// untracked returns the connections that conntrack does not track. later holds the sockets after
// the reading of conntrack. A socket that is not among them may have ended before that reading. Of
// the two ends, the one with the lower port counts as the server.
func (s *sockets) untracked(later sockets) (all []connection) {
	for k, socket := range s.byKey {
		if _, tracked := s.tracked[k]; tracked || later.byKey[k].Cookie != socket.Cookie {
			continue
		}
		client, server := socket.Local, socket.Remote
		if client.Port() < server.Port() {
			client, server = server, client
		}
		all = append(all, connection{nl.Tracked{Connection: nl.Connection{Client: client.Addr(),
			ClientPort: client.Port(), Server: server.Addr(), Port: server.Port(),
			Proto: protocols[k.proto]}, Original: server, Source: client.Addr(),
			Replied: k.proto == "tcp" && !socket.Connecting}, "sockets"})
	}
	return all
}
