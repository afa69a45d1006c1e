package verb

import (
	"os"
	"time"

	"github.com/spf13/pflag"
)

// CanaryEnv names the environment variable with the string that all payloads carry.
const CanaryEnv = "LAB_CANARY"

// Set are the flags of a verb. Flags that several verbs share are methods, so that a name has one
// meaning.
type Set struct {
	*pflag.FlagSet
	verbs Verbs
}

// NewSet returns the flags of the verb called name, one of verbs.
func NewSet(name string, verbs Verbs) Set { return Set{Flags(name), verbs} }

// Parse reads the command line of a verb without arguments.
func (o Set) Parse(args []string) error { return o.verbs.Parse(o.FlagSet, "", args) }

// ParseWith is Parse for a verb with the arguments that are described.
func (o Set) ParseWith(arguments string, args []string) error {
	return o.verbs.Parse(o.FlagSet, arguments, args)
}

// To adds the flag for the address of the other end.
func (o Set) To(whom string) *string { return o.String("to", "", "`host:port` of "+whom) }

// Proto adds the flag for TCP or UDP.
func (o Set) Proto() *string { return o.String("proto", "tcp", "tcp or udp") }

// FromPort adds the flag for the local port.
func (o Set) FromPort() *int {
	return o.Int("from-port", 0, "the port that it sends from; 0 lets the kernel choose")
}

// Listen adds the flag for the address to listen on.
func (o Set) Listen(usual, more string) *string {
	return o.String("listen", usual, "address"+more)
}

// Count adds the flag for a number.
func (o Set) Count(usual int, of string) *int { return o.Int("count", usual, of) }

// Size adds the flag for a size in bytes.
func (o Set) Size(usual int, of string) *int { return o.Int("size", usual, "bytes of a "+of) }

// Interval adds the flag for a pause.
func (o Set) Interval(usual time.Duration, between string) *time.Duration {
	return o.Duration("interval", usual, "pause between "+between)
}

// Timeout adds the flag for a time limit.
func (o Set) Timeout(usual time.Duration, of string) *time.Duration {
	return o.Duration("timeout", usual, "for "+of)
}

// Canary adds the flag for a string in all traffic, by which the leak oracle recognizes it.
func (o Set) Canary(does string) *string {
	return o.String("canary", os.Getenv(CanaryEnv), "what "+does)
}
