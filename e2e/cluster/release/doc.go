// Package release has the steps of users who install the folder of a release, for the cases of
// cluster/network and cluster/storage: docs/get-started.md and docs/how-to/helm.md.
//
// Start reading at Folder.
package release
