package vm

import (
	"context"
	"net/netip"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/addressplan"
	"github.com/kubeveil/kubeveil/e2e/vm/image"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// place is where a cluster is on the network that the clusters of a Pair share. The zero value means
// a cluster that is alone on its network.
type place struct {
	// name is the name of the cluster as a site of the other.
	name string
	// second reports whether the other cluster of the Pair made the network and the images. first
	// is that cluster.
	second bool
	first  *Cluster
}

// The second cluster has hosts and machines with other numbers, and other ranges of pods. Its range
// of services is the same, because those of two linked clusters may overlap.
const (
	secondControlByte = lab.ControlByte + 2 // the byte before it belongs to SecondAPI
	secondControlHost = "control-b"
	// secondMachines is odd, so that the first machine there runs containerd 2.
	secondMachines = 51
)

var (
	secondPods4 = netip.MustParsePrefix("198.18.192.0/18")
	secondPods6 = netip.MustParsePrefix("fd42:7::/48")
)

// machines returns the number of the last machine before those of the cluster.
func (p place) machines() int {
	if p.second {
		return secondMachines
	}
	return 0
}

func (p place) controlByte() byte {
	if p.second {
		return secondControlByte
	}
	return lab.ControlByte
}

// podRanges returns the ranges of the cluster's pods, IPv4 first.
func (p place) podRanges(f lab.Family) []netip.Prefix {
	if p.second {
		return addressplan.Pick(f, secondPods4, secondPods6)
	}
	return f.ClusterRanges()
}

// nodeRanges returns the addresses of the control plane's host and of this number of machines.
func (p place) nodeRanges(f lab.Family, machines int) (out []netip.Prefix) {
	hosts := []byte{p.controlByte()}
	for i := range machines {
		hosts = append(hosts, lab.NodeByte(p.machines()+1+i))
	}
	for _, h := range hosts {
		for _, a := range addressplan.AddrsOf(f.Underlay(h)) {
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return out
}

func (c *Cluster) podRanges() []netip.Prefix { return c.place.podRanges(c.Lab.Family()) }

// sharedPath returns the path of the shared disk.
func (c *Cluster) sharedPath() string {
	if c.place.second {
		return c.place.first.file(image.SharedDisk)
	}
	return c.file(image.SharedDisk)
}

// joinNetwork adds the control plane's host to the network of the first cluster. The oracle there
// watches both clusters.
func (c *Cluster) joinNetwork(ctx context.Context) (err error) {
	c.Lab = c.place.first.Lab
	c.Lab.Oracle.Update(func(r *leak.Rules) {
		r.Inner = append(r.Inner, c.podRanges()...)
		r.Nodes = append(r.Nodes, c.controlAddrs()...)
		for _, a := range c.controlAddrs() {
			r.Flows = append(r.Flows, leak.Flow{Name: "kube-apiserver", Proto: leak.TCP, Addr: a,
				Port: lab.APIPort})
		}
	})
	c.Control, err = c.Lab.AddHost(ctx, secondControlHost, c.place.controlByte())
	return err
}
