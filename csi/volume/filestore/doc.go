// Package filestore keeps the states of volumes in files, for machines without Kubernetes.
//
// Start reading at Folder.
package filestore
