package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeveil/kubeveil/e2e/lab/labhost"
)

// PortMapping is the argument of the capability portMappings.
type PortMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
}

// Bandwidth is the argument of the capability bandwidth. Rates are in bits per second, bursts in
// bits.
type Bandwidth struct {
	IngressRate  uint64 `json:"ingressRate,omitempty"`
	IngressBurst uint64 `json:"ingressBurst,omitempty"`
	EgressRate   uint64 `json:"egressRate,omitempty"`
	EgressBurst  uint64 `json:"egressBurst,omitempty"`
}

// Capabilities returns the arguments of capabilities as JSON, or "" if there are none. A nil limit
// means no limit.
func Capabilities(ports []PortMapping, limit *Bandwidth) (string, error) {
	caps := map[string]any{}
	if len(ports) > 0 {
		caps["portMappings"] = ports
	}
	if limit != nil {
		caps["bandwidth"] = limit
	}
	if len(caps) == 0 {
		return "", nil
	}
	b, err := json.Marshal(caps)
	return string(b), err
}

// Args returns the CNI_ARGS that name a pod to the plugins, or "" if o is nil.
func Args(o *corev1.Pod) string {
	if o == nil {
		return ""
	}
	return fmt.Sprintf("K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;K8S_POD_UID=%s", o.Namespace, o.Name,
		o.UID)
}

// Error is the error that a plugin returned for a verb.
type Error struct {
	Verb    string
	Code    uint
	Message string
}

// Error returns the verb, the code and the plugin's message.
func (e *Error) Error() string {
	return fmt.Sprintf("CNI %s: code %d: %s", strings.ToUpper(e.Verb), e.Code, e.Message)
}

// Answer is the answer of the plugins of a chain.
type Answer struct {
	// Result is the result of ADD, in JSON.
	Result json.RawMessage
	// Took is the duration of the chain.
	Took time.Duration
}

// Call runs cmd, which is veil-tools cni-call with a verb. If a plugin refuses, the error matches
// *Error.
func Call(cmd *exec.Cmd, verb string) (Answer, error) {
	out, err := labhost.Output(cmd)
	var a struct {
		Result json.RawMessage `json:"result"`
		Code   uint            `json:"code"`
		Error  string          `json:"error"`
		Millis float64         `json:"millis"`
	}
	if e := json.Unmarshal(bytes.TrimSpace(out), &a); e != nil {
		return Answer{}, errors.Join(err, fmt.Errorf("answer of CNI %s: %w", verb, e))
	}
	if a.Error != "" {
		err = &Error{verb, a.Code, a.Error}
	}
	return Answer{a.Result, time.Duration(a.Millis * float64(time.Millisecond))}, err
}

// Addrs returns the addresses in the result of an ADD, IPv4 first, and the MTU of the pod's
// interface, which is 0 if the result has none.
func (a Answer) Addrs() (addrs []netip.Addr, mtu int, err error) {
	var result struct {
		IPs []struct {
			Address netip.Prefix `json:"address"`
		} `json:"ips"`
		Interfaces []struct {
			MTU     int    `json:"mtu"`
			Sandbox string `json:"sandbox"`
		} `json:"interfaces"`
	}
	if err := json.Unmarshal(a.Result, &result); err != nil {
		return nil, 0, fmt.Errorf("result of ADD: %w", err)
	}

	for _, is4 := range []bool{true, false} {
		for _, ip := range result.IPs {
			if ip.Address.Addr().Is4() == is4 {
				addrs = append(addrs, ip.Address.Addr())
			}
		}
	}
	for _, i := range result.Interfaces {
		if i.Sandbox != "" {
			mtu = i.MTU
		}
	}
	return addrs, mtu, nil
}
