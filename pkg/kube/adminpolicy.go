package kube

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// adminVersion is the API version of the kinds that preceded ClusterNetworkPolicy. Kubeveil does
// not enforce them.
var adminVersion = schema.GroupVersion{Group: clusterPolicyKind.version.Group, Version: "v1alpha1"}

// ignoredKinds are kinds of policies that administrators may have written and that Kubeveil does
// not enforce.
var ignoredKinds = []kind{
	{what: "adminnetworkpolicies.policy.networking.k8s.io", rule: policyRights,
		path:    []string{"/apis/policy.networking.k8s.io/v1alpha1/adminnetworkpolicies"},
		version: adminVersion},
	{what: "baselineadminnetworkpolicies.policy.networking.k8s.io", rule: policyRights,
		path:    []string{"/apis/policy.networking.k8s.io/v1alpha1/baselineadminnetworkpolicies"},
		version: adminVersion},
}

// noteIgnored reports a problem while the cluster has objects of k, until ctx ends.
func (c *Client) noteIgnored(ctx context.Context, k kind) {
	count := 0 // the feed calls one function at a time
	changed := func(by int) {
		count += by
		text := ""
		if count > 0 {
			text = fmt.Sprintf("the cluster has %d, which are not in force: write them as "+
				"ClusterNetworkPolicies (%s)", count, clusterPolicyKind.version)
		}
		c.note(k.what, text)
	}
	objects := newFeed(c, k.what+" ", func(o *object) parsed[string] {
		name := o.Name
		return parsed[string]{value: &name}
	}, func(name string) any { return name }, func(string) { changed(1) },
		func(string) { changed(-1) }, func() {})
	c.reflectInstalled(ctx, k, objects, nil)
}
