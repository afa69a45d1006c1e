package main

import (
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

// status is the verb STATUS: it reports whether the gate would let an ADD in.
func (p *plugin) status(args *skel.CmdArgs) error {
	conf, err := parseValid(args.StdinData)
	if err != nil {
		return err
	}
	if err := p.open(conf); err != nil {
		return coded(types.ErrPluginNotAvailable, err)
	}
	if _, err := findIPAM(args); err != nil {
		return coded(types.ErrPluginNotAvailable, err)
	}
	return nil
}
