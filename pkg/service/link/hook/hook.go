package hook

import (
	"errors"

	"github.com/cilium/ebpf"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/internal/tchook"
)

// Names of the programs at links, and of the programs that the egress guard tail calls.
const (
	ProgIn, ProgInL3   = "service_in", "service_in_l3"
	ProgOut, ProgOutL3 = "service_out", "service_out_l3"
	ProgPodIn          = "service_pod_in"
	ProgPodOut         = "service_pod_out"
	ProgTunnelIn       = "service_tun_in"
	ProgTunnelOut      = "service_tun_out"
)

// linkPrograms are the programs that are attached to links.
var linkPrograms = []string{ProgIn, ProgInL3, ProgPodIn, ProgPodOut, ProgTunnelIn, ProgTunnelOut}

// ErrTaken is the error of a link without tcx that has the qdisc ingress. That qdisc has programs
// for ingress only, and a link cannot have both it and clsact.
var ErrTaken = errors.New("the link has the qdisc ingress instead of clsact, as with the plugin " +
	"bandwidth: use Linux 6.6, or remove the pod's bandwidth limit")

// Point is the place where a program is attached: a link and a direction.
type Point struct {
	Index int
	Dir   tchook.Direction
}

// Attacher attaches programs to links without a pin, as the guard does: they live as long as the
// link.
type Attacher interface {
	// List returns the programs in the order in which they run.
	List(h *nl.Handle, p Point) ([]ebpf.ProgramID, error)
	// Attach adds a program behind the others.
	Attach(h *nl.Handle, p Point, name string, prog *ebpf.Program) error
	// Replace exchanges a program for another, without a moment with neither.
	Replace(h *nl.Handle, p Point, name string, prog, old *ebpf.Program) error
	// Detach removes a program.
	Detach(h *nl.Handle, p Point, old *ebpf.Program) error
	// Tidy removes the qdisc that Attach made from a link that has none of our programs any more.
	Tidy(h *nl.Handle, index int) error
}

// New returns the Attacher of kernels with tcx, or of kernels without it.
func New(withTCX bool) Attacher {
	if withTCX {
		return tcx{}
	}
	return clsact{}
}
