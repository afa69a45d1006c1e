package main

import (
	"github.com/containernetworking/cni/pkg/skel"

	"github.com/kubeveil/kubeveil/pkg/pod"
)

// del is the verb DEL: it removes the link first, then releases its addresses. It needs no
// namespace, may be repeated, and is not stopped by a mistake elsewhere in the configuration.
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
