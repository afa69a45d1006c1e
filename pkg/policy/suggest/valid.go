package suggest

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/util/validation"
)

// maxLabels bounds the labels of one Pods.
const maxLabels = 256

// validRows returns the rows that an honest node may send, and how many others there are.
func validRows(rows []Row) (valid []Row, others int) {
	for _, r := range rows {
		if len(valid) < MaxRows && r.valid() {
			valid = append(valid, r)
		}
	}
	return valid, len(rows) - len(valid)
}

// valid reports whether the values of a row can exist in a cluster. A node that was taken over may
// send any others.
func (r Row) valid() bool {
	switch r.Protocol {
	case "TCP", "UDP", "SCTP":
	default:
		return false
	}
	return r.Port != 0 && r.Connections >= 0 && r.Subject.valid() && r.Peer.valid()
}

func (p Pods) valid() bool {
	if len(validation.IsDNS1123Label(p.Namespace)) > 0 || !isName(p.Example) || p.Others < 0 ||
		p.Other != "" && !isName(p.Other) || len(p.Labels) > maxLabels {
		return false
	}
	for key, value := range p.Labels {
		if len(validation.IsQualifiedName(key)) > 0 ||
			len(validation.IsValidLabelValue(value)) > 0 {
			return false
		}
	}
	return true
}

func (p Peer) valid() bool {
	if p.Pods != nil {
		return p.Pods.valid()
	}
	a, err := netip.ParseAddr(p.Addr)
	return err == nil && a.Zone() == "" && (p.Node == "" || isName(p.Node))
}

// isName reports whether text can be the name of a pod or a node.
func isName(text string) bool { return len(validation.IsDNS1123Subdomain(text)) == 0 }
