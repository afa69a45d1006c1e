package lab

import (
	"net"
	"os"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/verb"
)

// options are the flags of a verb. Flags that several verbs share are methods, so that a name has
// one meaning.
type options struct{ *pflag.FlagSet }

// optionsOf returns the options of the verb called name.
func optionsOf(name string) options { return options{verb.Flags(name)} }

// Parse reads the command line of a verb without arguments.
func (o options) Parse(args []string) error { return Verbs().Parse(o.FlagSet, "", args) }

func (o options) to(whom string) *string { return o.String("to", "", "`host:port` of "+whom) }

func (o options) proto() *string { return o.String("proto", "tcp", "tcp or udp") }

func (o options) fromPort() *int {
	return o.Int("from-port", 0, "the port that it sends from; 0 lets the kernel choose")
}

// dialerFrom returns a dialer that uses a local port, even if a connection that ended still has it.
func dialerFrom(proto string, port int, timeout time.Duration) *net.Dialer {
	d := &net.Dialer{Timeout: timeout}
	switch {
	case port == 0:
	case proto == "udp":
		d.LocalAddr = &net.UDPAddr{Port: port}
	default:
		d.LocalAddr = &net.TCPAddr{Port: port}
		d.Control = func(_, _ string, c syscall.RawConn) (err error) {
			if failed := c.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
			}); failed != nil {
				return failed
			}
			return err
		}
	}
	return d
}

func (o options) listen(usual, more string) *string {
	return o.String("listen", usual, "address"+more)
}

func (o options) count(usual int, of string) *int { return o.Int("count", usual, of) }

func (o options) size(usual int, of string) *int { return o.Int("size", usual, "bytes of a "+of) }

func (o options) interval(usual time.Duration, between string) *time.Duration {
	return o.Duration("interval", usual, "pause between "+between)
}

func (o options) timeout(usual time.Duration, of string) *time.Duration {
	return o.Duration("timeout", usual, "for "+of)
}

// canary adds the flag for a string in all traffic, by which the leak oracle recognizes it.
func (o options) canary(does string) *string {
	return o.String("canary", os.Getenv(canaryEnv), "what "+does)
}
