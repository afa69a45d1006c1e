package service

import (
	"errors"
	"fmt"
)

var (
	// ErrFull is that a map has no room for a service, which keeps what it had.
	ErrFull = errors.New("table of services is full")
	// ErrConflict is that another service has the frontend.
	ErrConflict = errors.New("frontend is another's")
	// ErrReserved is that a frontend belongs to the cluster itself.
	ErrReserved = errors.New("frontend is reserved")
	// ErrNotSupported is that a port is left to others.
	ErrNotSupported = errors.New("not supported")
	// ErrLimits is of limits that cannot be.
	ErrLimits = errors.New("bad limits")
)

// Names of the fields of Limits.
const (
	limitFronts  = "Fronts"
	limitSlots   = "Slots"
	limitMembers = "Members"
	limitSources = "Sources"
)

// FullError is an ErrFull: Service needs Want more entries of the map that Limit sets the size of.
type FullError struct {
	Service Name
	Limit   string // the name of the field of Limits
	Size    uint32
	Want    int
}

func (e *FullError) Error() string {
	return fmt.Sprintf("service %s: %v: no %d of the %d of limit %s are free: its backends stay "+
		"as they were; raise the limit",
		e.Service, ErrFull, e.Want, e.Size, e.Limit)
}

// Unwrap returns ErrFull.
func (e *FullError) Unwrap() error { return ErrFull }

// ConflictError is an ErrConflict: Owner has the frontend that Service claims.
type ConflictError struct {
	Service, Owner Name
	Front          FrontKey
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("service %s: %s %s: %v: service %s has it", e.Service, e.Front.Protocol,
		e.Front.AddrPort(), ErrConflict, e.Owner)
}

// Unwrap returns ErrConflict.
func (e *ConflictError) Unwrap() error { return ErrConflict }

// ReservedError is an ErrReserved: Service claims Front by an external IP, a LoadBalancer IP or a
// NodePort, but What is there.
type ReservedError struct {
	Service Name
	Front   FrontKey
	What    string
}

func (e *ReservedError) Error() string {
	return fmt.Sprintf("service %s: %s %s: %v: %s is there; use another address or port",
		e.Service, e.Front.Protocol, e.Front.AddrPort(), ErrReserved, e.What)
}

// Unwrap returns ErrReserved.
func (e *ReservedError) Unwrap() error { return ErrReserved }

// PortError is an ErrNotSupported: the table has no frontends for the port.
type PortError struct {
	Service Name
	Port    Port
}

func (e *PortError) Error() string {
	return fmt.Sprintf("service %s: port %d: %s is %v here and left to another proxy", e.Service,
		e.Port.Port, e.Port.Protocol, ErrNotSupported)
}

// Unwrap returns ErrNotSupported.
func (e *PortError) Unwrap() error { return ErrNotSupported }
