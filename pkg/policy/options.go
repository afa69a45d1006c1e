package policy

// Options are what the operator decides about policies. A Planner puts them into each Plan, where
// Judge, the table and the views read them: an option needs no parameter on the way. The zero value
// holds the defaults.
type Options struct {
	// AllowOwnNode reports whether a pod that NetworkPolicies isolate reaches its own node all the
	// same, as Kubernetes' API has it. The Admin tier of ClusterNetworkPolicies judges first.
	AllowOwnNode bool
}
