package service

// Sink receives services and their endpoints as they change. Several goroutines call its methods,
// which must not block. The sink must not change what it receives.
type Sink interface {
	PutService(s Service)
	DeleteService(n Name)
	PutSlice(s Slice)
	DeleteSlice(owner Name, slice string)
	// Listed is called once, after everything that existed has been put.
	Listed()
}

// LeftOut is how many objects of a namespace a source does not pass on, because the namespace has
// too many.
type LeftOut struct {
	// Kind is "Service" or "EndpointSlice".
	Kind, Namespace string
	Count           int
}
