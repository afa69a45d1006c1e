package suite

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/kubeveil/kubeveil/internal/netns"
)

// Space is a network namespace without a mount point. It lives until its descriptor is closed and
// the last process in it has ended.
type Space struct {
	// Name appears in errors.
	Name string
	f    *os.File
}

// NewSpace makes a namespace whose loopback is up and whose reverse path filter is off. The caller
// closes the space also after an error, unless it is nil.
func NewSpace(name string) (*Space, error) {
	f, err := netns.New()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s := &Space{name, f}
	return s, errors.Join(s.IP(context.Background(), "link set lo up"),
		s.Sysctl("net/ipv4/conf/all/rp_filter", "0", "net/ipv4/conf/default/rp_filter", "0"))
}

// Close closes the descriptor of the namespace, which then ends with the last process in it.
func (s *Space) Close() { _ = s.f.Close() }

// Path returns the path by which other processes can open the namespace.
func (s *Space) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), s.f.Fd()) }

// Do runs fn on a thread in the namespace.
func (s *Space) Do(fn func() error) error { return netns.DoFd(int(s.f.Fd()), s.Name, fn) }

// Dial connects to an address from within the namespace. The host must be an IP address.
func (s *Space) Dial(ctx context.Context, network, addr string) (c net.Conn, err error) {
	err = s.Do(func() (err error) {
		c, err = (&net.Dialer{}).DialContext(ctx, network, addr)
		return err
	})
	return c, err
}

// Command returns a command in the namespace and, unless cgroup is nil, in the cgroup. The program
// ends with this process, because it gets a parent-death signal. Go does not end threads that start
// programs, so the signal does not come earlier.
func (s *Space) Command(ctx context.Context, cgroup *os.File, name string,
	args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "nsenter",
		append([]string{"--net=" + s.Path(), "--", name}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if cgroup != nil {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(cgroup.Fd())
	}
	cmd.WaitDelay = 2 * time.Second
	return cmd
}

// Output runs a program to its end and returns its standard output. The error includes the end of
// the program's standard error.
func Output(cmd *exec.Cmd) ([]byte, error) {
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("run %s: %w: %s",
			strings.Join(cmd.Args[min(3, len(cmd.Args)-1):], " "), err, Tail(stderr.String(), 500))
	}
	return out, nil
}

// Tail returns the last n bytes of a text, or the whole text if it is shorter.
func Tail(text string, n int) string {
	text = strings.TrimSpace(text)
	return text[max(0, len(text)-n):]
}

// IP runs lines as commands of ip(8) in the namespace. It stops at the first command that fails.
func (s *Space) IP(ctx context.Context, lines ...string) error {
	cmd := s.Command(ctx, nil, "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if _, err := Output(cmd); err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	return nil
}

// Sysctl sets kernel parameters. pairs alternates names, as paths below /proc/sys, and values.
func (s *Space) Sysctl(pairs ...string) error {
	return s.Do(func() error {
		for i := 0; i+1 < len(pairs); i += 2 {
			if err := os.WriteFile("/proc/sys/"+pairs[i], []byte(pairs[i+1]), 0o644); err != nil {
				return fmt.Errorf("%s: set %s: %w", s.Name, pairs[i], err)
			}
		}
		return nil
	})
}
