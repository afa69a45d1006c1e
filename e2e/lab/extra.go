package lab

import (
	"context"
	"path/filepath"

	"github.com/kubeveil/kubeveil/e2e/lab/addressplan"
)

// AddHost makes a host without any role in the lab, at the underlay addresses with that last byte.
// Its traffic must be added to the rules of the Oracle first.
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

// Bridge is the host with the bridge; its link to plug into is BridgeLink.
func (l *Lab) Bridge() *Host { return l.bridge }

// BridgeLink is the bridge that plays the network, in Bridge.
const BridgeLink = bridgeLink

// NodeByte is the last byte of the underlay addresses of the node with that number.
func NodeByte(number int) byte { return byte(addressplan.NodeHost + number) }

// ControlByte is the last byte of the underlay addresses of the control plane.
const ControlByte byte = addressplan.ControlHost

// APIPort is where the API server is reached.
const APIPort = apiPort

// Program is the path of a program in out/bin.
func (l *Lab) Program(name string) string { return filepath.Join(l.bin, name) }
