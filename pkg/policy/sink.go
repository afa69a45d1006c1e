package policy

// Sink receives the objects that policies depend on as they change. Several goroutines call its
// methods, which must not block. The sink must not change what it receives.
//
// The addresses of a Pod are those that its status claims. The sink decides whether its node owns
// them.
type Sink interface {
	PutPod(p Pod)
	DeletePod(n Name)
	PutNamespace(n Namespace)
	DeleteNamespace(name string)
	PutPolicy(p Policy)
	DeletePolicy(n Name)
	PutClusterPolicy(p ClusterPolicy)
	DeleteClusterPolicy(name string)
	// SetNodeLabels is called with the labels of new Nodes and of Nodes whose labels changed, by
	// name, and with the names of Nodes that are gone. Its first call has all Nodes. Nil labels
	// mean that the Node has more labels than are kept. A Node without labels has an empty map.
	SetNodeLabels(labels map[string]map[string]string, gone []string)
	// Listed is called once, after everything that existed has been put.
	Listed()
	// SetFailing reports whether policies or namespaces cannot be read. False means that they can
	// be read again and were put. A watch that ends regularly and continues does not count as a
	// failure.
	SetFailing(failing bool)
}
