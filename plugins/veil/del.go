package main

import (
	"github.com/containernetworking/cni/pkg/skel"

	"github.com/kubeveil/kubeveil/pkg/pod"
)

// del is the verb DEL. It removes the link first, and then releases its addresses. It does not need
// the network namespace and may be repeated. It does not validate the configuration.
func (p *plugin) del(args *skel.CmdArgs) error {
	if _, err := parse(args.StdinData); err != nil {
		return err
	}
	if err := p.paths.Detach(pod.HostLink(args.ContainerID, args.IfName)); err != nil {
		return err
	}
	ipam, err := findIPAM(args)
	if err != nil {
		return err
	}
	return ipam.del()
}
