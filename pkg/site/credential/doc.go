// Package credential reads the credentials for the API servers of other sites from the Secret of
// veil-site: a folder with a kubeconfig for each site.
//
// Promises:
//   - A kubeconfig has everything in itself. It names no file and no program, and it needs the CA of
//     the API server.
//   - No error shows a part of the file, which has a token.
//   - Answers of the API server are bounded in bytes, and their warnings are discarded.
//
// Start reading at Read.
package credential
