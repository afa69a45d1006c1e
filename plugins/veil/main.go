// Command veil is the CNI plugin of Kubeveil, for CNI 0.3.1 to 1.1: it connects a
// pod to the node so that everything that leaves it is marked, checked and routed
// by table abi.TablePod. It needs neither a living daemon nor the API server.
//
// It promises:
//   - No pod is added before the guard is in force: ADD and STATUS call pod.Paths.Gate.
//   - An ADD that fails leaves nothing behind.
//   - DEL may be repeated and needs no network namespace.
//   - An address is released only after its link is gone.
//   - GC removes only objects of ours that belong to no valid attachment.
//
// It returns an error if another plugin comes before it in the chain, if the IPAM plugin is not
// host-local, or if the configuration has an unknown key.
//
// Start reading at conf.go, then add.go. Package pod makes the changes in the kernel.
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

// plugin has a method for each verb, each in a file of that name. Tests replace paths.
type plugin struct {
	paths pod.Paths
}

func (p *plugin) verbs() skel.CNIFuncs {
	return skel.CNIFuncs{Add: p.add, Del: p.del, Check: p.check, GC: p.gc, Status: p.status}
}

// coded returns an error with the text of err and a code of the CNI specification.
func coded(code uint, err error) error {
	return types.NewError(code, err.Error(), "")
}
