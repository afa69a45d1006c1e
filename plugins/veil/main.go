// Command veil is the CNI plugin of Kubeveil, for CNI 0.3.1 to 1.1: it connects a
// pod to the node so that everything that leaves it is marked, checked and routed
// by table abi.TablePod. It needs neither a living daemon nor the API server.
//
// It promises: no pod before the guard (pod.Gate, asked by ADD and STATUS); an ADD
// that fails leaves nothing; DEL may be repeated and needs no namespace; an address
// is released only after the link that had it is gone; GC removes only objects of
// ours that no valid attachment owns.
//
// It refuses to run after another plugin in the chain, an IPAM plugin other than
// host-local, and settings that it does not know.
//
// Start reading at conf.go, then add.go. What is done to the kernel is in pkg/pod.
package main

import (
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/kubeveil/kubeveil/pkg/pod"
)

// supported are the versions of the CNI specification that veil speaks.
var supported = version.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0")

const about = "CNI plugin veil: an encrypted pod network that fails closed"

func main() {
	p := &plugin{paths: pod.DefaultPaths()}
	skel.PluginMainFuncs(p.verbs(), supported, about)
}

// plugin holds what tests replace. Each verb is a file.
type plugin struct {
	paths pod.Paths
}

func (p *plugin) verbs() skel.CNIFuncs {
	return skel.CNIFuncs{Add: p.add, Del: p.del, Check: p.check, GC: p.gc, Status: p.status}
}

// coded wraps err with the code of the CNI specification; an error that has one
// already, such as an error of the IPAM plugin, keeps it.
func coded(code uint, err error) error {
	return types.NewError(code, err.Error(), "")
}
