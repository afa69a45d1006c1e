// Package largeobject measures veild in a cluster with objects that are as large as etcd accepts:
// the peak of its memory, and the time until an edit of another namespace's object is in force.
//
// It runs a lab with a complete veild and a real API server (e2e/lab). One repeated field makes
// each object large. Each field is read by streaming lists and by plain lists.
//
// Start reading at Run.
package largeobject
