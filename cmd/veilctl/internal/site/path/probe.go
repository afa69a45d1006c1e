package path

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
)

// probeVerb is the hidden verb that link runs in its pods.
const probeVerb = "path-probe"

// probe are the flags of the hidden verb.
type probe struct {
	to    string
	port  int
	token string
	sizes []int
	long  time.Duration
}

// Verb returns the hidden verb. "hold" waits until it is killed, "send" sends datagrams, and
// "receive" prints the sizes of those that arrive.
func Verb() *cobra.Command {
	cmd := &cobra.Command{Use: probeVerb + " hold|send|receive", Hidden: true,
		Short: "Send or receive datagrams between nodes of two clusters"}
	p := &probe{}
	fs := cmd.Flags()
	fs.StringVar(&p.to, "to", "", "`address:port` to send to")
	fs.IntVar(&p.port, "port", 0, "destination `port` to receive at")
	fs.StringVar(&p.token, "token", "", "beginning of the payloads")
	fs.IntSliceVar(&p.sizes, "sizes", nil, "sizes of IP packets, `bytes`")
	fs.DurationVar(&p.long, "for", 10*time.Second, "how long")

	return verb.New(cmd, func(c verb.Call) error {
		ctx, cancel := context.WithTimeout(c.Ctx, p.long)
		defer cancel()
		switch {
		case slices.Equal(c.Args, []string{"hold"}):
			<-c.Ctx.Done()
			return nil
		case len(c.Args) != 1 || p.token == "" || len(p.sizes) == 0:
		case c.Args[0] == "send":
			return p.send(ctx)
		case c.Args[0] == "receive":
			got, err := p.receive(ctx)
			if err != nil {
				return err
			}
			return verb.PrintJSON(c.Out, got)
		}
		return fmt.Errorf("%s runs in the pods of veilctl site link: %w", probeVerb, verb.ErrUsage)
	})
}

// message begins each payload: the type of WireGuard's data messages. So firewalls on the way treat
// the datagrams as those of a tunnel, and a tunnel drops them, because it has no such session.
const message = "\x04\x00\x00\x00"

// sendEvery is the pause between two rounds of datagrams of all sizes.
const sendEvery = 200 * time.Millisecond

// headers returns the bytes of the headers of IP and UDP.
func headers(is4 bool) int {
	if is4 {
		return 20 + 8
	}
	return 40 + 8
}

// send sends datagrams of each size until ctx ends. They are never fragmented. A size that the
// node's own interface refuses is left out.
func (p *probe) send(ctx context.Context) error {
	to, err := netip.ParseAddrPort(p.to)
	if err != nil {
		return fmt.Errorf("--to: %w: %w", err, verb.ErrUsage)
	}
	// Not connected: ICMP errors about one datagram would fail the next one.
	network := "udp6"
	if to.Addr().Is4() {
		network = "udp4"
	}
	conn, err := net.ListenUDP(network, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := keepWhole(conn, to.Addr().Is4()); err != nil {
		return err
	}

	sent, last := 0, error(nil)
	// If the tunnel has UDP_GRO, the receiver's kernel merges a datagram with a longer one before
	// it, and shows the size of both together. It does not merge one with a shorter one before it.
	sizes := slices.Sorted(slices.Values(p.sizes))
	for ctx.Err() == nil {
		for _, size := range sizes {
			payload := make([]byte, max(size-headers(to.Addr().Is4()), len(message)+len(p.token)))
			copy(payload, message+p.token)
			if _, err := conn.WriteToUDPAddrPort(payload, to); err == nil {
				sent++
			} else if !errors.Is(err, unix.EMSGSIZE) {
				last = err
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(sendEvery):
		}
	}
	if sent == 0 && last != nil {
		return last
	}
	return nil
}

// keepWhole forbids fragments, and ignores path MTUs that the kernel has learned.
func keepWhole(conn *net.UDPConn, is4 bool) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	level, option, value := unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE
	if is4 {
		level, option, value = unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), level, option, value)
	})
	return errors.Join(err, failed)
}

// receive returns the sizes of IP packets that arrive, the largest first, when all have arrived,
// when restFor has passed since the first, or when ctx ends. It reads frames, because the port
// belongs to the tunnel, and because the guard drops datagrams of nodes that are not peers yet.
func (p *probe) receive(ctx context.Context) ([]int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC,
		int(toNetwork(unix.ETH_P_ALL)))
	if err != nil {
		return nil, fmt.Errorf("read frames: %w", err)
	}
	defer unix.Close(fd)
	// A packet that is lost because the buffer is full is sent again.
	err = errors.Join(onlyPort(fd, p.port),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<20),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}))
	if err != nil {
		return nil, fmt.Errorf("read frames: %w", err)
	}

	got, buf := map[int]bool{}, make([]byte, headers(false)+len(message+p.token))
	for ctx.Err() == nil && len(got) < len(p.sizes) {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENETDOWN) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read frames: %w", err)
		}
		if size := p.size(buf[:n]); slices.Contains(p.sizes, size) {
			if len(got) == 0 {
				var rest context.CancelFunc
				ctx, rest = context.WithTimeout(ctx, restFor)
				defer rest()
			}
			got[size] = true
		}
	}
	sizes := slices.Sorted(maps.Keys(got))
	slices.Reverse(sizes)
	return sizes, nil
}

// onlyPort drops frames in the kernel unless they have the port where a datagram without options of
// IP has it, so that other traffic of a node does not fill the buffer. Some other frames pass.
func onlyPort(fd, port int) error {
	const load, equal = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ
	filter := []unix.SockFilter{
		{Code: load, K: uint32(headers(true) - 6)},
		{Code: equal, K: uint32(port), Jt: 2},
		{Code: load, K: uint32(headers(false) - 6)},
		{Code: equal, K: uint32(port), Jf: 1},
		{Code: unix.BPF_RET, K: 64 << 10},
		{Code: unix.BPF_RET},
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}

// toNetwork returns v in network byte order.
func toNetwork(v uint16) uint16 { return v<<8 | v>>8 }

// size returns the size of an IP packet if it is a datagram of the probe, otherwise 0. An IPv4
// packet with options, and an IPv6 packet with extension headers, do not count.
func (p *probe) size(b []byte) int {
	is4 := len(b) > 0 && b[0] == 0x45
	head := headers(is4)
	switch {
	case len(b) < head+len(message+p.token) || !is4 && b[0]>>4 != 6:
		return 0
	case is4 && b[9] != unix.IPPROTO_UDP || !is4 && b[6] != unix.IPPROTO_UDP:
		return 0
	case int(b[head-6])<<8|int(b[head-5]) != p.port:
		return 0
	case string(b[head:head+len(message+p.token)]) != message+p.token:
		return 0
	case is4:
		return int(b[2])<<8 | int(b[3])
	}
	return 40 + (int(b[4])<<8 | int(b[5]))
}
