// Package apiobject gives objects to the API server of a lab and takes them away. It reads the
// repository's manifests, adds components to them, and applies them as kubectl does. It lists all
// objects, and deletes those that were added since.
//
// It is for API servers without controllers, so it also does work of controllers, such as deleting
// the objects in a namespace. Start reading at Client.ApplyAll and Client.DeleteAdded.
package apiobject
