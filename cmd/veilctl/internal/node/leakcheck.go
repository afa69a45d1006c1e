package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/leak"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// LeakReport is the output of leakcheck; fields are added, never renamed.
type LeakReport struct {
	// Links are the interfaces that were read. Unguarded are those among them without the guard.
	Links     []string `json:"links"`
	Unguarded []string `json:"unguarded,omitempty"`
	// Unread are interfaces that were not read the whole time, or why they are not known. If there
	// is one, the check proves nothing.
	Unread  []string `json:"unread,omitempty"`
	Seconds float64  `json:"seconds"`
	Frames  uint64   `json:"frames"`
	// Tunnel counts WireGuard's frames, and Neighbour counts frames of ARP and ND.
	Tunnel    uint64 `json:"tunnel"`
	Neighbour uint64 `json:"neighbour"`
	// Other counts all other frames without an address of the cluster: host to host, and outside.
	Other uint64 `json:"other"`
	// Leaks counts frames with an address of the cluster in clear.
	Leaks uint64 `json:"leaks"`
	// Dropped counts frames that the check missed. If it is not 0, the check proves nothing.
	Dropped  uint64         `json:"dropped"`
	Examples []leak.Example `json:"examples,omitempty"`
}

// Leakcheck returns the verb that reads the guarded links of this node for the time --for.
func Leakcheck() *cobra.Command {
	cmd := &cobra.Command{
		Use: "leakcheck", Short: "Read this node's underlay for a while, and judge every frame",
		Long: `It reads the frames of the interfaces that the guard protects or should protect, and counts
the frames that have an address of the cluster in clear. It names interfaces without the guard, and
those that it could not read the whole time. It needs CAP_NET_RAW, which veild's container does not
have, so run it as root on the node itself.`,
		Example: `veilctl leakcheck
veilctl leakcheck --for 1m -o json
# where there is no shell on the node, with the image of DaemonSet veild:
kubectl debug node/NODE -it --profile=sysadmin --image=IMAGE -- \
  /usr/local/bin/veilctl leakcheck --socket /host/run/kubeveil/veild.sock`,
	}

	fs := cmd.Flags()
	long := fs.Duration("for", 10*time.Second, "how long to read")
	socket := verb.SocketFlag(cmd)
	return verb.Reporting(cmd, func(c verb.Call) error {
		if *long <= 0 || *long > time.Hour {
			return fmt.Errorf("--for %v: write a time between 1s and 1h: %w", *long, verb.ErrUsage)
		}
		s, err := verb.FetchStatus(c.Ctx, *socket)
		if err != nil {
			return err
		}
		r, err := readLinks(c, s, *long)
		if err != nil {
			return err
		}
		s, err = verb.FetchStatus(context.WithoutCancel(c.Ctx), *socket)
		r.noteUnread(s.Guard, err)
		return c.Print(r, r.Leaks > 0 || r.Dropped > 0 || len(r.Unread) > 0, func() error {
			showLeaks(c, r)
			return nil
		})
	})
}

// noteUnread adds the interfaces of g, the guard after the check, that were not read. err is the
// reason why g is not known.
func (r *LeakReport) noteUnread(g telemetry.Guard, err error) {
	if err != nil {
		r.Unread = append(r.Unread, fmt.Sprintf("perhaps interfaces that were added meanwhile: %v", err))
	}
	for _, link := range slices.Concat(g.Links, g.Unguarded) {
		if !slices.Contains(r.Links, link) && !slices.Contains(r.Unread, link) {
			r.Unread = append(r.Unread, link)
		}
	}
}

func readLinks(c verb.Call, s telemetry.Status, long time.Duration) (LeakReport, error) {
	rules := leak.Rules{Inner: s.Guard.Ranges, Nodes: s.Guard.NodeAddrs}
	for _, d := range s.Devices {
		rules.TunnelPort = uint16(d.Port)
	}

	if err := mayRead(); err != nil {
		return LeakReport{}, err
	}
	o, err := leak.Start("", rules) // in the present network namespace, CAP_NET_RAW is enough
	if err != nil {
		return LeakReport{}, fmt.Errorf("read this node's links: %w", err)
	}

	r := LeakReport{Unguarded: s.Guard.Unguarded}
	for _, link := range slices.Concat(s.Guard.Links, s.Guard.Unguarded) {
		if err := o.Watch(link); err != nil {
			r.Unread = append(r.Unread, link)
			fmt.Fprintln(c.Progress, err)
			continue
		}
		r.Links = append(r.Links, link)
	}

	began := time.Now()
	if !c.JSON {
		fmt.Fprintf(c.Out, "reading %s for %v …\n", strings.Join(r.Links, ", "), long)
	}

	select {
	case <-time.After(long):
	case <-c.Ctx.Done():
	}

	seen, err := o.Stop()
	if err != nil {
		return LeakReport{}, err
	}

	r.Seconds, r.Frames, r.Dropped = time.Since(began).Seconds(), seen.Frames, seen.Dropped
	r.Tunnel, r.Neighbour = seen.Kinds[leak.Tunnel], seen.Kinds[leak.Neighbour]
	r.Leaks = seen.Plaintext
	r.Other = r.Frames - r.Tunnel - r.Neighbour - r.Leaks

	for _, e := range seen.Examples {
		if e.Kind.Leak() {
			r.Examples = append(r.Examples, e)
		}
	}

	return r, nil
}

// mayRead returns an error with a remedy if this process may not read frames, as in veild's own
// container.
func mayRead() error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.EPERM):
		return errors.New("leakcheck needs CAP_NET_RAW, which veild's container lacks: run it " +
			"on the node, see veilctl leakcheck --help")
	case err != nil:
		return fmt.Errorf("read frames: %w", err)
	}
	return unix.Close(fd)
}

func showLeaks(c verb.Call, r LeakReport) {
	fmt.Fprintf(c.Out, `%8d frames in %.0f s
%8d of the tunnel
%8d ARP and neighbour discovery
%8d of this host and the outside, without an address of the cluster
%8d with an address of the cluster in clear
`, r.Frames, r.Seconds, r.Tunnel, r.Neighbour, r.Other, r.Leaks)
	for _, e := range r.Examples {
		fmt.Fprintln(c.Out, e)
	}
	if len(r.Unguarded) > 0 {
		fmt.Fprintf(c.Out, "without the guard: %s\n", strings.Join(r.Unguarded, ", "))
	}
	switch {
	case len(r.Unread) > 0:
		fmt.Fprintf(c.Out, "not read: %s: this proves nothing\n", strings.Join(r.Unread, ", "))
	case r.Dropped > 0:
		fmt.Fprintf(c.Out, "%d frames were lost before they were read, so the result proves "+
			"nothing: repeat it when there is less traffic\n", r.Dropped)
	case r.Leaks > 0:
		fmt.Fprintln(c.Out, "LEAK: report this with the frames above")
	default:
		fmt.Fprintln(c.Out, "nothing of the cluster in clear")
	}
}
