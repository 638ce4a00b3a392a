"""The pages, a file for each page with its actions; `app.every_page` joins them."""
