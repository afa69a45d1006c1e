package lab

import (
	"context"
	"path/filepath"

	"github.com/kubeveil/kubeveil/e2e/lab/addressplan"
)

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

// BridgeLink is the name of the bridge link in the host Bridge. It plays the hostile network.
const BridgeLink = bridgeLink

// NodeByte returns the last byte of a node's underlay addresses, by the node's number.
func NodeByte(number int) byte { return byte(addressplan.NodeHost + number) }

// ControlByte is the last byte of the underlay addresses of the control plane.
const ControlByte byte = addressplan.ControlHost

// APIPort is the port of the API servers.
const APIPort = apiPort

// Program returns the path of a program in out/bin.
func (l *Lab) Program(name string) string { return filepath.Join(l.bin, name) }
