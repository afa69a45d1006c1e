package verb

import (
	"os"
	"time"

	"github.com/spf13/pflag"
)

// CanaryEnv is the environment variable with the canary, the text that all payloads contain.
const CanaryEnv = "LAB_CANARY"

// Set is the flag set of a verb. Methods add the flags that several verbs share, so that a flag has
// the same meaning in all verbs.
type Set struct {
	*pflag.FlagSet
	verbs Verbs
}

// NewSet returns an empty flag set for the verb called name, one of verbs.
func NewSet(name string, verbs Verbs) Set { return Set{Flags(name), verbs} }

// Parse parses the command line of a verb that has no arguments.
func (o Set) Parse(args []string) error { return o.verbs.Parse(o.FlagSet, "", args) }

// ParseWith parses the command line of a verb with arguments, which arguments describes for the
// help.
func (o Set) ParseWith(arguments string, args []string) error {
	return o.verbs.Parse(o.FlagSet, arguments, args)
}

// To adds the flag for the address of the other end.
func (o Set) To(whom string) *string { return o.String("to", "", "`host:port` of "+whom) }

// Proto adds the flag for TCP or UDP.
func (o Set) Proto() *string { return o.String("proto", "tcp", "tcp or udp") }

// FromPort adds the flag for the local port.
func (o Set) FromPort() *int {
	return o.Int("from-port", 0, "local port; 0 lets the kernel choose")
}

// Listen adds the flag for the address to listen on.
func (o Set) Listen(usual, more string) *string {
	return o.String("listen", usual, "address"+more)
}

// Count adds the flag for a number.
func (o Set) Count(usual int, of string) *int { return o.Int("count", usual, of) }

// Size adds the flag for the size of a message in bytes.
func (o Set) Size(usual int, of string) *int { return o.Int("size", usual, "bytes per "+of) }

// Interval adds the flag for the interval between two events.
func (o Set) Interval(usual time.Duration, between string) *time.Duration {
	return o.Duration("interval", usual, "interval between "+between)
}

// Timeout adds the flag for a time limit.
func (o Set) Timeout(usual time.Duration, of string) *time.Duration {
	return o.Duration("timeout", usual, "time limit for "+of)
}

// Canary adds the flag for the canary, the text in all traffic by which the leak oracle finds it.
func (o Set) Canary(does string) *string {
	return o.String("canary", os.Getenv(CanaryEnv), "text that "+does)
}
