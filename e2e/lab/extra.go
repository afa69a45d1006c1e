package lab

import (
	"context"
	"path/filepath"

	"github.com/kubeveil/kubeveil/e2e/lab/addressplan"
	"github.com/kubeveil/kubeveil/e2e/lab/labhost"
)

// Until calls a function until it returns nil or an error of Stop: see package labhost.
var Until, Stop = labhost.Until, labhost.Stop

// AddHost adds a host without a role in the cluster, at the underlay addresses with the last byte
// last. Before this call, its traffic must be added to the rules of the Oracle.
func (l *Lab) AddHost(ctx context.Context, name string, last byte) (*Host, error) {
	h, err := l.newHost(ctx, name)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.hosts = append(l.hosts, h)
	l.mu.Unlock()
	return h, l.plug(ctx, h, name, "eth0", l.opts.Family.Underlay(last))
}

// Bridge returns the host with the bridge, whose link is called BridgeLink.
func (l *Lab) Bridge() *Host { return l.bridge }

// NodeByte returns the last byte of a node's underlay addresses, by the node's number.
func NodeByte(number int) byte { return byte(addressplan.NodeHost + number) }

// ControlByte is the last byte of the underlay addresses of the control plane.
const ControlByte byte = addressplan.ControlHost

// Program returns the path of a program in out/bin.
func (l *Lab) Program(name string) string { return filepath.Join(l.bin, name) }
