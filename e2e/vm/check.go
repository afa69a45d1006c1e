package vm

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/config"
)

// check returns an error if the value of an option is invalid.
func (o ClusterConfig) check() error {
	if err := CheckServiceProxy(o.ServiceProxy); err != nil {
		return fmt.Errorf("services by %q: %w", o.ServiceProxy, err)
	}
	if err := CheckProxyMode(o.ProxyMode, o.ServiceProxy); err != nil {
		return fmt.Errorf("kube-proxy in mode %q: %w", o.ProxyMode, err)
	}
	if err := CheckHostRouting(o.HostRouting, o.ServiceProxy); err != nil {
		return fmt.Errorf("host routing by %q: %w", o.HostRouting, err)
	}
	if err := CheckPolicy(o.Policy); err != nil {
		return fmt.Errorf("policies of %q: %w", o.Policy, err)
	}
	return nil
}

// The functions below return an error that names the valid values or the setting to change. An
// empty value means the default.

// CheckServiceProxy returns an error if kind is not a service proxy.
func CheckServiceProxy(kind string) error {
	return oneOf(kind, config.ServiceProxyNone, config.ServiceProxyEBPF)
}

// CheckProxyMode returns an error if mode is not a mode of kube-proxy, or if a mode is set although
// the service proxy leaves the cluster without a kube-proxy.
func CheckProxyMode(mode, proxy string) error {
	if err := oneOf(mode, ProxyModes...); err != nil {
		return err
	}
	if mode != "" && proxy == config.ServiceProxyEBPF {
		return fmt.Errorf("with services by %s there is no kube-proxy: leave it out", proxy)
	}
	return nil
}

// CheckHostRouting returns an error if kind is not a host routing, or does not work with the
// service proxy.
func CheckHostRouting(kind, proxy string) error {
	if err := oneOf(kind, config.HostRoutingKernel, config.HostRoutingEBPF,
		config.HostRoutingAuto); err != nil {
		return err
	}
	if (config.Services{HostRouting: kind}).FastPath() && proxy != config.ServiceProxyEBPF {
		return fmt.Errorf("it needs the service proxy %s, too", config.ServiceProxyEBPF)
	}
	return nil
}

// CheckPolicy returns an error if kind is not a valid value of ClusterConfig.Policy.
func CheckPolicy(kind string) error {
	return oneOf(kind, config.PolicyNone, config.PolicyKubernetes)
}

// oneOf returns an error that lists the valid values, unless value is empty or among them.
func oneOf(value string, values ...string) error {
	if value == "" || slices.Contains(values, value) {
		return nil
	}
	last := len(values) - 1
	return fmt.Errorf("write %s or %s", strings.Join(values[:last], ", "), values[last])
}
