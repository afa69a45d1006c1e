package droplog

import (
	"log/slog"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
)

// Reasons holds the drop reasons that are logged: those for which a policy denied the packet.
var Reasons = []string{policy.DenyIngress.String(), policy.DenyEgress.String(),
	policy.DenyAdmin.String(), policy.DenyBaseline.String(), policy.DenyUnknownPeer.String()}

// Denier is the side that denies a packet, its policies and the rule. The zero value means that no
// policy denied it, or that the plan has changed since and would no longer deny it for the same
// reason.
type Denier struct {
	// Direction is the direction whose policies deny. Pod is the NAMESPACE/NAME of their pod.
	Direction, Pod string
	// Policies are the names of the first policies that deny, More counts the others. Rule is the
	// text of the rule. The holder must not change Policies, which many Deniers share.
	Policies []string
	More     int
	Rule     string
}

// Log logs and counts drops. Make it with New. Add is for one goroutine, Retain for any.
type Log struct {
	log    *slog.Logger
	limit  *dropLimit
	counts counts
}

// New returns a Log that writes to log.
func New(log *slog.Logger) *Log { return &Log{log: log, limit: newDropLimit()} }

// Add counts a drop of the sender's packet, and logs it if it is new and within the limits. The
// zero sender means that no known pod sent the packet.
func (l *Log) Add(d nftables.Dropped, by Denier, sender policy.Name) {
	l.counts.add(by)
	if slices.Contains(Reasons, d.Reason) && l.limit.accept(d, sender, time.Now()) {
		l.write(d, by, l.limit.takeSkipped(sender))
	}
}

// Retain forgets the rules of all policies except these. It returns the number of samples of each
// of the other rules, and the number of samples beyond the bounds of rules.
func (l *Log) Retain(policies map[string]bool) (counts map[policy.RuleName]uint64, leftOut uint64) {
	return l.counts.retain(policies)
}

// write logs one drop.
func (l *Log) write(d nftables.Dropped, by Denier, skipped int) {
	fields := []any{"reason", d.Reason, "from", d.Src, "to", d.Dst, "proto", d.Proto.Word(),
		"port", d.Port}
	if by.Direction != "" {
		fields = append(fields, "direction", by.Direction)
	}
	if by.Pod != "" {
		fields = append(fields, "pod", by.Pod)
	}
	if by.Rule != "" {
		fields = append(fields, "policies", by.Policies, "rule", by.Rule)
	}
	if by.More > 0 {
		fields = append(fields, "morePolicies", by.More)
	}
	if skipped > 0 {
		fields = append(fields, "skipped", skipped)
	}
	l.log.Info("a policy denied a connection", fields...)
}
