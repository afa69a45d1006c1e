package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/kubeveil/kubeveil/pkg/pod"
)

// check is the verb CHECK. It checks that the attachment is as ADD made it, that prevResult agrees
// with the record, and that the addresses are still reserved. The error names all differences.
func (p *plugin) check(args *skel.CmdArgs) error {
	conf, err := parseValid(args.StdinData)
	if err != nil {
		return err
	}
	prev, err := prevResult(conf, args.StdinData)
	if err != nil {
		return coded(types.ErrInvalidNetworkConfig,
			fmt.Errorf("network %q: prevResult: %w", conf.Name, err))
	}

	hostLink := pod.HostLink(args.ContainerID, args.IfName)
	r, err := p.paths.Load(hostLink)
	if errors.Is(err, pod.ErrNotFound) || err == nil && r.Network != conf.Name {
		return coded(types.ErrUnknownContainer,
			fmt.Errorf("container %s has no interface %s on network %q", args.ContainerID,
				args.IfName, conf.Name))
	}
	if err != nil {
		return err
	}
	differences, err := p.paths.Check(r, args.Netns)
	if err != nil {
		return err
	}

	differences = append(differences, compare(prev, r, args.Netns)...)
	if len(differences) > 0 {
		return fmt.Errorf("container %s, interface %s: %s", args.ContainerID, args.IfName,
			strings.Join(differences, "; "))
	}
	ipam, err := findIPAM(args)
	if err != nil {
		return err
	}
	if err := ipam.run("CHECK"); err != nil {
		return wrap("check reservation", err)
	}

	return nil
}

// prevResult returns the result of ADD that the runtime passes to CHECK. It returns an error if the
// runtime did not pass a result.
func prevResult(conf *netConf, data []byte) (*current.Result, error) {
	if len(conf.PrevResult) == 0 {
		return nil, errors.New("missing: the runtime gives CHECK the result of ADD")
	}
	var net types.NetConf
	if err := json.Unmarshal(data, &net); err != nil {
		return nil, err
	}
	if err := version.ParsePrevResult(&net); err != nil {
		return nil, err
	}
	return current.NewResultFromResult(net.PrevResult)
}

// compare returns a text for each part of the record that prev lacks. prev may have more, because
// later plugins of the chain may have added to it.
func compare(prev *current.Result, r pod.Record, netns string) []string {
	var texts []string
	pod, host := -1, false
	for i, iface := range prev.Interfaces {
		host = host || iface.Name == r.HostLink && iface.Sandbox == ""
		if iface.Name == r.IfName && iface.Sandbox == netns && iface.Mac == r.PodMAC().String() {
			pod = i
		}
	}
	if !host {
		texts = append(texts, fmt.Sprintf("prevResult has no interface %s on the node", r.HostLink))
	}
	if pod < 0 {
		texts = append(texts, fmt.Sprintf("prevResult has no interface %s at %s in %s", r.IfName,
			r.PodMAC(), netns))
	}
	for _, a := range r.Addrs {
		want := ipNet(netip.PrefixFrom(a, a.BitLen()))
		if !slices.ContainsFunc(prev.IPs, func(ip *current.IPConfig) bool {
			return ip.Address.String() == want.String() && (ip.Interface == nil ||
				*ip.Interface == pod)
		}) {
			texts = append(texts, fmt.Sprintf("prevResult has no address %s", want.String()))
		}
	}
	return texts
}
