package policy

// Denial is a policy that denies more than its text does, for pods of this node.
type Denial struct {
	// Name names the policy. A ClusterNetworkPolicy has no namespace.
	Name
	Object
	// Problem describes what is denied and why.
	Problem string
}
