package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/pod"
)

// add is the verb ADD.
func (p *plugin) add(args *skel.CmdArgs) error {
	result, conf, err := p.attach(args)
	if err != nil {
		return err
	}
	return types.PrintResult(result, conf.CNIVersion)
}

// attach performs ADD and returns the result, which add prints.
func (p *plugin) attach(args *skel.CmdArgs) (*current.Result, *netConf, error) {
	began := time.Now()
	conf, err := parseValid(args.StdinData)
	if err != nil {
		return nil, nil, err
	}
	if len(conf.PrevResult) > 0 {
		return nil, nil, coded(types.ErrInvalidNetworkConfig,
			fmt.Errorf("network %q: veil was given a prevResult: it must be the first plugin of "+
				"the list, portmap and bandwidth come after it", conf.Name))
	}
	if err := p.open(conf); err != nil {
		return nil, nil, coded(types.ErrTryAgainLater, err)
	}
	ns, err := openNetns(args.Netns)
	if err != nil {
		return nil, nil, coded(types.ErrInvalidNetNS, err)
	}
	defer ns.Close()

	var undo pod.Undo
	result, err := p.connect(args, conf, int(ns.Fd()), began, &undo)
	if err != nil {
		if e := undo.Run(); e != nil {
			return nil, nil, wrap(err.Error(),
				fmt.Errorf("and could not be undone, which DEL will do: %w", e))
		}
		if errors.Is(err, pod.ErrClosed) {
			err = coded(types.ErrTryAgainLater, err)
		}
		return nil, nil, err
	}
	return result, conf, nil
}

// connect reserves addresses and attaches the pod. It adds the steps that revert this to undo. It
// stores the time since began in the record.
func (p *plugin) connect(args *skel.CmdArgs, conf *netConf, nsFd int, began time.Time,
	undo *pod.Undo) (*current.Result, error) {
	hostLink := pod.HostLink(args.ContainerID, args.IfName)
	if exists, err := p.paths.Exists(hostLink); err != nil {
		return nil, err
	} else if exists {
		return nil, fmt.Errorf("container %s has interface %s on network %q already: call DEL "+
			"before another ADD", args.ContainerID, args.IfName, conf.Name)
	}

	ipam, err := findIPAM(args)
	if err != nil {
		return nil, err
	}
	given, addrs, err := ipam.add()
	if err != nil {
		return nil, wrap("reserve addresses", err)
	}

	undo.Add(ipam.del)
	ports, err := conf.hostPorts()
	if err != nil {
		return nil, coded(types.ErrInvalidNetworkConfig, err)
	}
	record := pod.Record{
		Network: conf.Name, ContainerID: args.ContainerID, IfName: args.IfName, Netns: args.Netns,
		HostLink: hostLink, Addrs: addrs, MTU: conf.MTU, Workload: workload(args.Args),
		HostPorts: ports,
	}
	if err := p.paths.Attach(record, nsFd, undo); err != nil {
		return nil, err
	}

	if err := p.paths.NoteTook(hostLink, time.Since(began)); err != nil {
		return nil, err
	}
	return resultOf(record, conf, given)
}

// workload returns the namespace, name and UID of the pod in CNI_ARGS. If one of them is missing or
// CNI_ARGS is malformed, it returns a zero Workload. Where policies are enforced, the packets of
// such a pod are dropped until veild finds its names.
func workload(cniArgs string) pod.Workload {
	var args struct {
		types.CommonArgs
		K8S_POD_NAMESPACE, K8S_POD_NAME, K8S_POD_UID types.UnmarshallableString
	}
	args.IgnoreUnknown = true
	if err := types.LoadArgs(cniArgs, &args); err != nil {
		return pod.Workload{}
	}
	w := pod.Workload{Namespace: string(args.K8S_POD_NAMESPACE), Name: string(args.K8S_POD_NAME),
		UID: string(args.K8S_POD_UID)}
	if w.Namespace == "" || w.Name == "" || w.UID == "" {
		return pod.Workload{}
	}
	return w
}

// resultOf returns the result of ADD as a CNI 1.1 result. Fields that the version in conf lacks are
// empty.
func resultOf(r pod.Record, conf *netConf, given *current.Result) (*current.Result, error) {
	mtu := 0
	if atLeast, err := version.GreaterThanOrEqualTo(conf.CNIVersion, "1.1.0"); err != nil {
		return nil, err
	} else if atLeast {
		mtu = r.MTU
	}

	result := &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{
			{Name: r.HostLink, Mac: r.HostMAC().String(), Mtu: mtu},
			{Name: r.IfName, Mac: r.PodMAC().String(), Mtu: mtu, Sandbox: r.Netns},
		},
		DNS: given.DNS,
	}

	if !conf.DNS.IsEmpty() {
		result.DNS = conf.DNS
	}

	for _, a := range r.Addrs {
		gateway := net.IP(pod.Gateway(a).AsSlice())
		result.IPs = append(result.IPs, &current.IPConfig{
			Interface: current.Int(1), Address: ipNet(netip.PrefixFrom(a, a.BitLen())),
			Gateway: gateway,
		})
		result.Routes = append(result.Routes,
			&types.Route{Dst: ipNet(pod.DefaultPrefix(a)), GW: gateway, MTU: mtu})
	}

	return result, nil
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// open returns an error unless the data path is in place for the families of the pods' addresses
// (see pod.Paths.Gate).
func (p *plugin) open(conf *netConf) error {
	prefixes, err := conf.IPAM.prefixes()
	if err != nil {
		return err
	}
	return p.paths.Gate(prefixes)
}

// openNetns opens the network namespace of the pod. It returns an error for the namespace of the
// node.
func openNetns(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("network namespace %s of the pod does not exist", path)
		}
		return nil, fmt.Errorf("open network namespace of the pod: %w", err)
	}
	var own, its unix.Stat_t
	err = errors.Join(unix.Stat("/proc/self/ns/net", &own), unix.Fstat(int(f.Fd()), &its))
	if err == nil && own.Dev == its.Dev && own.Ino == its.Ino {
		err = fmt.Errorf("network namespace %s is the one of the node: a pod on the host network has "+
			"no interface", path)
	}
	if err == nil && own.Dev != its.Dev {
		err = fmt.Errorf("%s is not a network namespace", path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
