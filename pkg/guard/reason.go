package guard

import "github.com/kubeveil/kubeveil/bpf"

// Reason is why a packet was dropped: its number, its name in metrics, and a sentence for people.
type Reason = bpf.Reason

// Reasons are all reasons, by number.
func Reasons() []Reason { return bpf.Reasons }
